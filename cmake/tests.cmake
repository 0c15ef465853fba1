# facet_add_test(NAME SOURCES ... [LIBRARIES ...] [LABELS ...]): one GoogleTest program, one ctest entry.
# FACET_SOURCE_DIR and FACET_BINARY_DIR tell the tests where checked-in data and built plugins are.
function(facet_add_test NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  target_link_libraries(${NAME} PRIVATE facet_build_flags ${ARG_LIBRARIES} GTest::gtest GTest::gtest_main)
  target_compile_definitions(${NAME} PRIVATE
    FACET_SOURCE_DIR="${PROJECT_SOURCE_DIR}" FACET_BINARY_DIR="${PROJECT_BINARY_DIR}")
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${NAME} COMMAND ${NAME})
  set_tests_properties(${NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 900)
endfunction()
