#include "quant_gptq/cuda/w4a16_stream/rows_kernel.cuh"

namespace facet::linear {

RowsKernel rows_kernel_1(const Rows32& shape) {
  return rows_kernel_of<1>(shape);
}

}  // namespace facet::linear
