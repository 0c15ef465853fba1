# CUDA is optional. This version ships no CUDA plugin; what is built with it is the test that a CUDA plugin compiles against the SDK, loads
# on a machine without driver, and says why it cannot run there.
set(FACET_CUDA AUTO CACHE STRING "CUDA: AUTO (when a toolkit is found), ON (an error when none is) or OFF")
set_property(CACHE FACET_CUDA PROPERTY STRINGS AUTO ON OFF)

set(FACET_NVCC "")
# A sanitized host takes only sanitized plugins, and nvcc's are not.
if(NOT FACET_CUDA STREQUAL "OFF" AND NOT FACET_SANITIZE)
  find_program(FACET_NVCC_PROGRAM nvcc HINTS /usr/local/cuda/bin)
  if(FACET_NVCC_PROGRAM)
    set(FACET_NVCC ${FACET_NVCC_PROGRAM})
  elseif(FACET_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FACET_CUDA is ON, but there is no nvcc; install the CUDA toolkit, put nvcc on the PATH, or use FACET_CUDA=AUTO")
  endif()
endif()
