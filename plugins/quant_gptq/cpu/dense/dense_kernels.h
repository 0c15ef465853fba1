// Kernels of linear/dense, one set an instruction set. No inline functions here: see CMakeLists.txt.
//
// All of them sum over the inputs in an order that depends on in_features alone, so a row's result is the same in every
// call, however many rows stand beside it.
#pragma once

#include <cstdint>

namespace facet::linear {

// Rows of W in a register tile, and in the panel that one kernel call multiplies with.
inline constexpr int kDenseTile = 4;
inline constexpr int kDensePanel = 16;

struct DensePanel {
  const std::uint16_t* weights[kDensePanel];  // bf16 rows of in_features values
  int columns;                                // of them, 1..kDensePanel
  std::int64_t row_bytes;                     // from one row to the next, to fetch ahead
  std::int64_t in_features;
  const void* input;  // [rows, in_features] float, or bf16 for the bf16 kernel
  std::int64_t input_stride;
  std::int64_t rows;
  float* output;  // the panel's first column of the first row
  std::int64_t output_stride;
};

using DenseKernel = void (*)(const DensePanel& panel);

void dense_generic(const DensePanel& panel);
void dense_avx2(const DensePanel& panel);
void dense_avx512(const DensePanel& panel);
void dense_avx512_bf16(const DensePanel& panel);  // reads bf16 input

// out[count] = bf16(in[count]), nearest even, for the bf16 kernel.
void bf16_avx512(const float* in, std::int64_t count, std::uint16_t* out);

}  // namespace facet::linear
