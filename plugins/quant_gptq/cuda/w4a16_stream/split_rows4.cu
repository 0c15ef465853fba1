#include "quant_gptq/cuda/w4a16_stream/split_kernel.cuh"

namespace facet::linear {

SplitKernel split_kernel_4(const Rows32& shape) {
  return split_kernel_of<4>(shape);
}

}  // namespace facet::linear
