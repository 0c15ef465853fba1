// Small pieces that the kernels share.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "facet/sdk/cuda/launch.cuh"

namespace facet::cuda {

__device__ inline float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// Sum over the block, the same in every thread. scratch: 32 floats. Fixed order, so results repeat.
__device__ inline float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x + 31) / 32;
  __syncthreads();  // scratch may still be read from an earlier sum
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

// cap * tanh(x / cap); 0: no cap. The product is rounded by itself wherever this is inlined: all kernels agree on it.
__device__ inline float soft_capped(float x, float cap) {
  return cap == 0.0f ? x : __fmul_rn(cap, tanhf(x / cap));
}

// Launches with the attribute that lets a kernel begin before its predecessor ends, in clusters of so many blocks.
template <typename... Params, typename... Args>
cudaError_t launch_clusters(void (*kernel)(Params...), unsigned cluster, dim3 grid, dim3 block, std::size_t shared,
                            cudaStream_t stream, Args... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

template <typename... Params, typename... Args>
cudaError_t launch_dependent(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream,
                             Args... args) {
  return launch_clusters(kernel, 1, grid, block, shared, stream, args...);
}

}  // namespace facet::cuda
