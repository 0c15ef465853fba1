// Choice and launch of a kernel of split_kernel.cuh.
#include "quant_gptq/cuda/w4a16_stream/split_kernel.cuh"

namespace facet::linear {

namespace {

SplitKernel kernel_of(const Rows32& shape, int rows) {
  return rows <= 2 ? split_kernel_2(shape) : split_kernel_4(shape);
}

template <int ROWS>
int fixed_bytes(const StreamArgs& args) {
  const int sums = kGemvWarps + (args.splits > 1 ? args.depth * args.splits : 0);
  return kSplitBarrierBytes + split_input_bytes<ROWS>(args.block_chunks, args.shape.segments) +
         sums * ROWS * kUnitRows * 4;
}

}  // namespace

int split_fixed_bytes(const StreamArgs& args) {
  return args.rows <= 2 ? fixed_bytes<2>(args) : fixed_bytes<4>(args);
}

int split_max_slots() {
  return kGemvMaxSlots;
}

cudaError_t split_prepare(const Rows32& shape) {
  int device = 0;
  int limit = 0;
  cudaError_t result = cudaGetDevice(&device);
  if (result != cudaSuccess) return result;
  result = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (const int rows : {2, 4}) {
    if (result != cudaSuccess) return result;
    const void* kernel = reinterpret_cast<const void*>(kernel_of(shape, rows));
    result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
    if (result != cudaSuccess) return result;
    result = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
  }
  return result;
}

int split_clusters(const Rows32& shape, int splits, int shared_per_block) {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  config.gridDim = dim3(static_cast<unsigned>(splits));
  config.blockDim = dim3(kSplitThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_per_block);
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel_of(shape, 4), &config) == cudaSuccess) return clusters;
  cudaGetLastError();  // the launches after this one are not to find it
  return 0;
}

cudaError_t split_launch(const StreamArgs& args, int grid, int shared_bytes, bool dependent, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = dependent ? 1 : 0;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(args.splits), 1, 1};
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(kSplitThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  return cudaLaunchKernelEx(&config, kernel_of(args.shape, args.rows), args);
}

}  // namespace facet::linear
