#include "quant_gptq/cuda/w4a16_wgmma/kernel.cuh"

namespace facet::linear {

WgmmaKernel wgmma_kernel_128(const Rows32& shape, const TileForm& form) {
  return wgmma_kernel_of<128>(shape, form);
}

}  // namespace facet::linear
