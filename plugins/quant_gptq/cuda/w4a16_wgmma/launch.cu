// Choice and launch of a kernel of kernel.cuh.
#include "quant_gptq/cuda/device/cluster.h"
#include "quant_gptq/cuda/w4a16_wgmma/kernels.h"
#include "quant_gptq/cuda/w4a16_wgmma/layout.h"

namespace facet::linear {

namespace {

WgmmaKernel kernel_of(const Rows32& shape, const TileForm& form) {
  switch (form.columns) {
    case 8:
      return wgmma_kernel_8(shape, form);
    case 16:
      return wgmma_kernel_16(shape, form);
    case 32:
      return wgmma_kernel_32(shape, form);
    case 48:
      return wgmma_kernel_48(shape, form);
    case 64:
      return wgmma_kernel_64(shape, form);
    case 96:
      return wgmma_kernel_96(shape, form);
    default:
      return wgmma_kernel_128(shape, form);
  }
}

}  // namespace

cudaError_t wgmma_prepare(const Rows32& shape) {
  for (const TileForm& form : kTileForms) {
    const void* kernel = reinterpret_cast<const void*>(kernel_of(shape, form));
    const cudaError_t result =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedPerBlock);
    if (result != cudaSuccess) return result;
  }
  return cudaSuccess;
}

int wgmma_clusters(const Rows32& shape, int splits) {
  // A block has a multiprocessor to itself, whatever its form.
  constexpr TileForm kForm = kTileForms[0];
  return clusters_at_once(kernel_of(shape, kForm), splits, tile_threads(kForm), kSharedPerBlock);
}

cudaError_t wgmma_launch(const WgmmaArgs& args, const TileChoice& choice, const CUtensorMap& map, bool dependent,
                         cudaStream_t stream) {
  return launch_clusters(
      kernel_of(args.shape, choice.form),
      {choice.grid, choice.splits, tile_threads(choice.form), choice.shared_bytes, dependent, stream}, args, map);
}

}  // namespace facet::linear
