// Kernels of linear/w4a16. No inline functions here: see CMakeLists.txt.
//
// y = sum over segments of  scale_w * (sum of (code_w - mean) * x  +  (mean - zero_w) * sum of x),
// codes less their mean being exact in fp32 and bf16. Both sums are fp32 in an order that depends on the weights' shape
// alone, whatever the tile: a row's result does not depend on the rows beside it.
#pragma once

#include "rows16/rows16.h"

namespace facet::linear {

struct A16Task {
  Rows16 weights;
  std::int64_t block_begin;
  std::int64_t block_end;
  std::int64_t rows;
  const void*
      input;  // [rows, segments * segment] float, or bf16 as round_pairs_avx512_bf16() leaves it for the bf16 kernel
  std::int64_t input_stride;
  const float* sums;  // [rows, segments] sums of x; null when symmetric
  float* output;      // [rows, out_features]
  std::int64_t output_stride;
};
using A16Kernel = void (*)(const A16Task& task);

void a16_generic(const A16Task& task);
void a16_avx2(const A16Task& task);
void a16_avx512(const A16Task& task);
void a16_avx512_bf16(const A16Task& task);  // int4 only

}  // namespace facet::linear
