// Choice and launch of a kernel of kernel.cuh.
#include "quant_gptq/cuda/device/cluster.h"
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
  // A block has a multiprocessor to itself.
  return clusters_at_once(kernel_of(shape, 16, 2), splits, kTileThreads, kSharedPerBlock);
}

cudaError_t wgmma_launch(const WgmmaArgs& args, const TileChoice& choice, const CUtensorMap& map, bool dependent,
                         cudaStream_t stream) {
  return launch_clusters(kernel_of(args.shape, choice.columns, choice.blocks),
                         {choice.grid, choice.splits, kTileThreads, choice.shared_bytes, dependent, stream}, args, map);
}

}  // namespace facet::linear
