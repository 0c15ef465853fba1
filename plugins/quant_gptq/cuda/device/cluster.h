// Kernels whose blocks come in clusters: how many the device runs at a time, and the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace facet::linear {

inline cudaLaunchAttribute cluster_of(int blocks) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  return attribute;
}

// Clusters of `blocks` blocks that run at a time when each takes so much shared memory; 0 where the device refuses.
template <typename Kernel>
int clusters_at_once(Kernel kernel, int blocks, int threads, int shared_bytes) {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute = cluster_of(blocks);
  config.attrs = &attribute;
  config.numAttrs = 1;
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess) return clusters;
  cudaGetLastError();  // the launches after this one are not to find it
  return 0;
}

struct ClusterLaunch {
  int grid;    // blocks, whole clusters
  int blocks;  // of a cluster
  int threads;
  int shared_bytes;
  bool dependent;  // may begin before the launch before it has ended
  cudaStream_t stream;
};

template <typename Kernel, typename... Args>
cudaError_t launch_clusters(Kernel kernel, const ClusterLaunch& launch, const Args&... args) {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = launch.dependent ? 1 : 0;
  attributes[1] = cluster_of(launch.blocks);
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  config.gridDim = dim3(static_cast<unsigned>(launch.grid));
  config.blockDim = dim3(static_cast<unsigned>(launch.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(launch.shared_bytes);
  return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace facet::linear
