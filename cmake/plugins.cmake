# facet_add_plugin(NAME SOURCES ... [LIBRARIES ...])
# A plugin is a MODULE library that sees only facet/abi and facet/sdk. All plugins land in one folder so that
# tests and the program find them without an install.
# facet_plugins builds them all, for tests that load some by name.
add_custom_target(facet_plugins)

function(facet_add_plugin NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${NAME} MODULE ${ARG_SOURCES})
  target_link_libraries(${NAME} PRIVATE facet::sdk facet_build_flags ${ARG_LIBRARIES})
  set_target_properties(${NAME} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${FACET_PLUGIN_OUTPUT_DIR})
  # A missing symbol is an error of the build, not of the user's first run. Clang leaves the sanitizer runtime to the program.
  if(NOT (FACET_SANITIZE AND CMAKE_CXX_COMPILER_ID MATCHES Clang))
    target_link_options(${NAME} PRIVATE -Wl,--no-undefined)
  endif()
  set_property(GLOBAL APPEND PROPERTY FACET_PLUGINS ${NAME})
  add_dependencies(facet_plugins ${NAME})
endfunction()

# facet_add_cuda_plugin(NAME SOURCES ... [KERNELS file.cu ...] [LIBRARIES ...])
# The same for a plugin with device code. Without a toolkit only its name is kept, so that the program can say what it lacks.
function(facet_add_cuda_plugin NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;KERNELS;LIBRARIES" ${ARGN})
  set_property(GLOBAL APPEND PROPERTY FACET_CUDA_PLUGINS ${NAME})
  if(FACET_NVCC)
    facet_add_plugin(${NAME} SOURCES ${ARG_SOURCES} LIBRARIES ${ARG_LIBRARIES})
    facet_cuda_sources(${NAME} ${ARG_KERNELS})
  endif()
endfunction()

# Tells the program the names of all CUDA plugins and whether this build has them (facet/plugin/cuda_plugins.h).
function(facet_tell_cuda_plugins)
  get_property(names GLOBAL PROPERTY FACET_CUDA_PLUGINS)
  list(JOIN names " " names)
  set_property(SOURCE framework/src/plugin/cuda_plugins.cpp TARGET_DIRECTORY facet_core
    PROPERTY COMPILE_DEFINITIONS "FACET_CUDA_PLUGINS=\"${names}\"" $<$<BOOL:${FACET_NVCC}>:FACET_HAS_CUDA>)
endfunction()
