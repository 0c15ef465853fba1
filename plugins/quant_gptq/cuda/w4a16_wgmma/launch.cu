// Choice and launch of a kernel of kernel.cuh.
#include "quant_gptq/cuda/w4a16_wgmma/kernels.h"
#include "quant_gptq/cuda/w4a16_wgmma/layout.h"

namespace facet::linear {

namespace {

WgmmaKernel kernel_of(const Rows32& shape, int columns, int blocks) {
  switch (columns) {
    case 8:
      return wgmma_kernel_8(shape, blocks);
    case 16:
      return wgmma_kernel_16(shape, blocks);
    case 32:
      return wgmma_kernel_32(shape, blocks);
    case 48:
      return wgmma_kernel_48(shape, blocks);
    case 64:
      return wgmma_kernel_64(shape, blocks);
    case 96:
      return wgmma_kernel_96(shape, blocks);
    default:
      return wgmma_kernel_128(shape, blocks);
  }
}

}  // namespace

cudaError_t wgmma_prepare(const Rows32& shape) {
  for (const int columns : kTileColumns) {
    for (const int blocks : {1, 2}) {
      if (!tile_compiled(columns, blocks)) continue;
      const void* kernel = reinterpret_cast<const void*>(kernel_of(shape, columns, blocks));
      const cudaError_t result =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedPerBlock);
      if (result != cudaSuccess) return result;
    }
  }
  return cudaSuccess;
}

int wgmma_clusters(const Rows32& shape, int splits) {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  config.gridDim = dim3(static_cast<unsigned>(splits));
  config.blockDim = dim3(kTileThreads);
  config.dynamicSmemBytes = kSharedPerBlock;  // a block has a multiprocessor to itself
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel_of(shape, 16, 2), &config) == cudaSuccess) return clusters;
  cudaGetLastError();  // the launches after this one are not to find it
  return 0;
}

cudaError_t wgmma_launch(const WgmmaArgs& args, const TileChoice& choice, const CUtensorMap& map, bool dependent,
                         cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = dependent ? 1 : 0;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(choice.splits), 1, 1};
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  config.gridDim = dim3(static_cast<unsigned>(choice.grid));
  config.blockDim = dim3(kTileThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(choice.shared_bytes);
  return cudaLaunchKernelEx(&config, kernel_of(args.shape, choice.columns, choice.blocks), args, map);
}

}  // namespace facet::linear
