# Every dependency is a Debian/Ubuntu package; scripts/setup.sh installs them.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(TBB REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(simdjson REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Boost 1.74 REQUIRED)

find_path(FACET_TOMLPLUSPLUS_DIR toml++/toml.h REQUIRED)
add_library(facet_tomlplusplus INTERFACE)
target_include_directories(facet_tomlplusplus SYSTEM INTERFACE ${FACET_TOMLPLUSPLUS_DIR})

# Boost.DLL is header only with std::filesystem.
add_library(facet_boost_dll INTERFACE)
target_include_directories(facet_boost_dll SYSTEM INTERFACE ${Boost_INCLUDE_DIRS})
target_compile_definitions(facet_boost_dll INTERFACE BOOST_DLL_USE_STD_FS)
target_link_libraries(facet_boost_dll INTERFACE ${CMAKE_DL_LIBS})

# OpenBLAS and LAPACKE, for the quantizer alone. The quantizer calls it from several threads at
# once, which only the build with POSIX threads can bear; with others it takes turns.
find_library(FACET_OPENBLAS_LIBRARY openblas REQUIRED)
find_library(FACET_LAPACKE_LIBRARY lapacke REQUIRED)
find_path(FACET_CBLAS_DIR cblas.h PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE} REQUIRED)
find_path(FACET_LAPACKE_DIR lapacke.h REQUIRED)
add_library(facet_blas INTERFACE)
target_include_directories(facet_blas SYSTEM INTERFACE ${FACET_CBLAS_DIR} ${FACET_LAPACKE_DIR})
target_link_libraries(facet_blas INTERFACE ${FACET_LAPACKE_LIBRARY} ${FACET_OPENBLAS_LIBRARY})

if(FACET_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(FACET_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
