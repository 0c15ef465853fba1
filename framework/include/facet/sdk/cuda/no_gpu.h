// Why a machine has no GPU, in the same words everywhere. For the host's side of CUDA code.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "facet/sdk/text.h"

namespace facet::sdk {

// "no GPU: ..." when the runtime finds no device, "" when it finds one.
inline std::string why_no_gpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count > 0 ? "" : "no GPU: the driver shows none";
  // The runtime says "driver version is insufficient" of a machine without any; then the version is 0.
  int driver = 0;
  if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
    return "no GPU: there is no NVIDIA driver";
  return concat("no GPU: ", cudaGetErrorString(error));
}

}  // namespace facet::sdk
