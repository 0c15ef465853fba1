// Launching a kernel for a head size that is known only at run time.
#pragma once

#include "attention/cuda/params.h"

namespace facet::attention::cuda {

// Calls function.template operator()<kDim>() for the head size.
template <typename Function>
cudaError_t for_head_dim(std::int32_t head_dim, Function&& function) {
  switch (head_dim) {
    case 64:
      return function.template operator()<64>();
    case 96:
      return function.template operator()<96>();
    case 128:
      return function.template operator()<128>();
    case 256:
      return function.template operator()<256>();
    case 512:
      return function.template operator()<512>();
    default:
      return cudaErrorInvalidValue;
  }
}

// The same for the shared form of the cache, kDim and the channels of a key: a quarter of its head turns.
template <typename Function>
cudaError_t for_shared_head_dim(std::int32_t head_dim, Function&& function) {
  switch (head_dim) {
    case 128:
      return function.template operator()<128, 32>();
    case 512:
      return function.template operator()<512, 128>();
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename Kernel>
cudaError_t allow_shared(Kernel kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

inline cudaLaunchAttribute cluster_attribute(int blocks) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  return attribute;
}

// Grid (blocks, KV heads, sequences), in clusters of `cluster` blocks, with programmatic dependent launch.
template <typename Kernel, typename... More>
cudaError_t launch_grid(Kernel kernel, const FlashParams& params, const LaunchShape& shape, int blocks, int cluster,
                        int threads, int shared_bytes, const More&... more) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1] = cluster_attribute(cluster);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(shape.kv_heads),
                        static_cast<unsigned>(shape.sequences));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = shape.stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, params, more...);
}

}  // namespace facet::attention::cuda
