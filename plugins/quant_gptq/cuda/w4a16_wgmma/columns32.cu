#include "quant_gptq/cuda/w4a16_wgmma/kernel.cuh"

namespace facet::linear {

WgmmaKernel wgmma_kernel_32(const Rows32& shape, int blocks) {
  return wgmma_kernel_of<32>(shape, blocks);
}

}  // namespace facet::linear
