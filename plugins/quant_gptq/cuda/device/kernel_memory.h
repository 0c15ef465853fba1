// Shared memory of kernels that take as much of a multiprocessor's as they are given.
#pragma once

#include <cuda_runtime_api.h>

namespace facet::linear {

// Allows a kernel as much shared memory as a block of the current device may have, and the multiprocessor's whole.
inline cudaError_t allow_all_shared(const void* kernel) {
  int device = 0;
  int limit = 0;
  cudaError_t result = cudaGetDevice(&device);
  if (result != cudaSuccess) return result;
  result = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (result != cudaSuccess) return result;
  result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
  if (result != cudaSuccess) return result;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
}

}  // namespace facet::linear
