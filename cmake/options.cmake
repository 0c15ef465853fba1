# Build options. Everything optional is on only when Facet is the top-level project.
option(FACET_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(FACET_BUILD_BENCHMARKS "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(FACET_INSTALL "Define install rules" ${PROJECT_IS_TOP_LEVEL})
option(FACET_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})
option(FACET_FUZZ "Build libFuzzer targets (clang only)" OFF)
set(FACET_SANITIZE "" CACHE STRING "Sanitizers for every target, e.g. address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# The program and its plugins run from the build tree as they do when installed: bin/facet beside lib/facet/plugins.
set(FACET_PLUGIN_OUTPUT_DIR ${PROJECT_BINARY_DIR}/lib/facet/plugins)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

find_program(FACET_CCACHE ccache)
if(FACET_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${FACET_CCACHE})
endif()

# One interface target carries the warnings and sanitizers, so no directory-wide definitions are needed.
add_library(facet_build_flags INTERFACE)
target_compile_options(facet_build_flags INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor
  $<$<BOOL:${FACET_WERROR}>:-Werror>
  # -Wrestrict of GCC 12 reports std::string's own operator+ at -O3 (GCC PR 105651).
  $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique -Wno-restrict>)
if(FACET_SANITIZE)
  target_compile_options(facet_build_flags INTERFACE -fsanitize=${FACET_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(facet_build_flags INTERFACE -fsanitize=${FACET_SANITIZE})
endif()
