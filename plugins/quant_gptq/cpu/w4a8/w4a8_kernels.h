// Kernels of linear/w4a8. No inline functions here: see CMakeLists.txt.
//
// y = sum over segments of  scale_x * scale_w * (sum of code_w * code_x  -  zero_w * sum of code_x),
// the bracket in exact 32-bit integers, the outer sum in fp32 in the order of the segments whatever the tile: a row's
// result does not depend on the rows beside it.
#pragma once

#include "rows16/rows16.h"

namespace facet::linear {

// Inputs that share one activation scale.
inline constexpr std::int64_t kActivationGroup = 128;

struct A8Task {
  Rows16 weights;
  std::int64_t block_begin;
  std::int64_t block_end;
  std::int64_t rows;
  const std::int8_t* codes;     // [rows, segments * segment]
  const float* scales;          // [rows, segments]
  const std::int32_t* offsets;  // [rows, segments]: minus the sum of the codes, times the mean when symmetric
  float* output;                // [rows, out_features]
  std::int64_t output_stride;
};
using A8Kernel = void (*)(const A8Task& task);

void a8_generic(const A8Task& task);
void a8_avx2(const A8Task& task);
void a8_avx512_vnni(const A8Task& task);

// Rounds one group of up to kActivationGroup inputs to int8 codes, `padded` of them (past `count`: 0), with the scale
// largest |x| / 127 that it returns. Groups with an infinity or a NaN get a scale of NaN.
using QuantizeKernel = float (*)(const float* input, std::int64_t count, std::int64_t padded, std::int8_t* codes);
float quantize_generic(const float* input, std::int64_t count, std::int64_t padded, std::int8_t* codes);
float quantize_avx512(const float* input, std::int64_t count, std::int64_t padded, std::int8_t* codes);

}  // namespace facet::linear
