# CUDA is optional: without a toolkit everything else builds, and with one the same program still runs on a machine without a driver.
set(FACET_CUDA AUTO CACHE STRING "CUDA: AUTO (when a toolkit is found), ON (an error when none is) or OFF")
set_property(CACHE FACET_CUDA PROPERTY STRINGS AUTO ON OFF)
set(FACET_CUDA_ARCHITECTURES 90a CACHE STRING "GPU architectures to compile kernels for, as nvcc names them: 90a")

set(FACET_NVCC "")
# A sanitized host takes only sanitized plugins, and nvcc's are not.
if(NOT FACET_CUDA STREQUAL "OFF" AND NOT FACET_SANITIZE)
  find_program(FACET_NVCC_PROGRAM nvcc HINTS /usr/local/cuda/bin)
  if(FACET_NVCC_PROGRAM)
    set(FACET_NVCC ${FACET_NVCC_PROGRAM})
    get_filename_component(_bin ${FACET_NVCC} DIRECTORY)
    get_filename_component(FACET_CUDA_ROOT ${_bin} DIRECTORY)
    find_library(FACET_CUDART_STATIC cudart_static HINTS ${FACET_CUDA_ROOT}/lib64 REQUIRED)
  elseif(FACET_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FACET_CUDA is ON, but there is no nvcc; install the CUDA toolkit, put nvcc on the PATH, or use FACET_CUDA=AUTO")
  endif()
endif()

# facet_cuda_sources(TARGET file.cu ...)
# Compiles device code and links the static CUDA runtime, which needs no driver to load. nvcc is called by hand: CMake 3.25 knows no
# CUDA standard 20 and adds a -std=c++17 of its own. Files include CUDA headers, facet/abi and what lies under the given directories.
function(facet_cuda_sources TARGET)
  set(flags -std=c++20 -O3 -lineinfo -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra -Werror all-warnings
      -I${PROJECT_SOURCE_DIR}/framework/include -I${PROJECT_SOURCE_DIR}/plugins)
  foreach(arch IN LISTS FACET_CUDA_ARCHITECTURES)
    list(APPEND flags -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  foreach(source IN LISTS ARGN)
    get_filename_component(file ${source} ABSOLUTE)
    string(MAKE_C_IDENTIFIER ${source} name)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${TARGET}_${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${FACET_NVCC} ${flags} -c -MD -MF ${object}.d -MT ${object} ${file} -o ${object}
      DEPENDS ${file} DEPFILE ${object}.d COMMENT "nvcc ${source}" VERBATIM)
    target_sources(${TARGET} PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  endforeach()
  target_include_directories(${TARGET} SYSTEM PRIVATE ${FACET_CUDA_ROOT}/include)
  target_link_libraries(${TARGET} PRIVATE ${FACET_CUDART_STATIC} Threads::Threads ${CMAKE_DL_LIBS} rt)
endfunction()
