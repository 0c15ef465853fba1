// Backend on an NVIDIA GPU, through a library that is loaded when it is asked for.
#pragma once

#include <memory>

#include "facet/backend/backend.h"

namespace facet {

// Loads lib/facet/libfacet_cuda.so beside the program (or the file that FACET_CUDA_LIBRARY names) and opens device 0.
// Throws Error(config) that says nothing but what is missing: the library, a driver, or a GPU it has kernels for.
std::unique_ptr<Backend> make_cuda_backend();

}  // namespace facet
