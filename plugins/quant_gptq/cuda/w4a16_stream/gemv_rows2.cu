#include "quant_gptq/cuda/w4a16_stream/gemv_kernel.cuh"

namespace facet::linear {

GemvKernel gemv_kernel_2(const Rows32& shape, bool norm) {
  return gemv_kernel_of<2>(shape, norm);
}

}  // namespace facet::linear
