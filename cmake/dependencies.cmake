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

if(FACET_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(FACET_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
