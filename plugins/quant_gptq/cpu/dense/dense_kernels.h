// Kernels of linear/dense, one set an instruction set. No inline functions here: see CMakeLists.txt.
//
// All of them sum over the inputs in an order that depends on in_features alone, so a row's result is the same in every
// call, however many rows stand beside it.
#pragma once

#include <cstdint>

namespace facet::linear {

// Rows of W that one kernel call multiplies with.
inline constexpr int kDenseColumns = 4;

struct DenseTile {
  const std::uint16_t* weights[kDenseColumns];  // bf16 rows of in_features values; null past `columns`
  int columns;                                  // 1..kDenseColumns
  std::int64_t in_features;
  const void* input;  // [rows, in_features] float, or bf16 for the bf16 kernel
  std::int64_t input_stride;
  std::int64_t rows;
  float* output;  // the tile's first column of the first row
  std::int64_t output_stride;
};

using DenseKernel = void (*)(const DenseTile& tile);

void dense_generic(const DenseTile& tile);
void dense_avx2(const DenseTile& tile);
void dense_avx512(const DenseTile& tile);
void dense_avx512_bf16(const DenseTile& tile);  // reads bf16 input

// out[count] = bf16(in[count]), nearest even, for the bf16 kernel.
void bf16_avx512(const float* in, std::int64_t count, std::uint16_t* out);

}  // namespace facet::linear
