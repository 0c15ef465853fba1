// bf16 weights widened to fp32, fp32 FMA, 8 inputs a step.
#include <immintrin.h>

#include "common/unroll.h"
#include "dense/dense_kernels.h"

namespace facet::linear {

namespace {

/// Sums of four vectors, in one fixed tree: lane i of the result is the sum of all lanes of vector i.
__m128 sum4(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

__m256 widen(__m128i values) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(values), 16));
}

// Copies of the last inputs, filled with zeros to a whole vector: AVX2 has no masked load of 16-bit values.
struct Tail {
  alignas(32) std::uint16_t weights[8];
  alignas(32) float input[8];
};

// 4 x 2 sums, 4 weight vectors and an input vector fill 13 of the 16 registers.
constexpr int kRows = 2;

template <int Columns, int Rows>
void tile_kernel(const DensePanel& panel, const std::uint16_t* const* weights, const float* input, float* output) {
  __m256 sums[Rows][kDenseTile];
  FACET_UNROLL
  for (int row = 0; row < Rows; ++row) {
    FACET_UNROLL
    for (int column = 0; column < kDenseTile; ++column) sums[row][column] = _mm256_setzero_ps();
  }
  const std::int64_t whole = panel.in_features / 8 * 8;
  for (std::int64_t k = 0; k < whole; k += 8) {
    __m256 w[Columns];
    FACET_UNROLL
    for (int column = 0; column < Columns; ++column)
      w[column] = widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights[column] + k)));
    FACET_UNROLL
    for (int row = 0; row < Rows; ++row) {
      const __m256 x = _mm256_loadu_ps(input + row * panel.input_stride + k);
      FACET_UNROLL
      for (int column = 0; column < Columns; ++column)
        sums[row][column] = _mm256_fmadd_ps(w[column], x, sums[row][column]);
    }
  }
  if (whole < panel.in_features) {
    const auto left = static_cast<int>(panel.in_features - whole);
    Tail tail;
    __m256 w[Columns];
    FACET_UNROLL
    for (int column = 0; column < Columns; ++column) {
      for (int i = 0; i < 8; ++i) tail.weights[i] = i < left ? weights[column][whole + i] : std::uint16_t{0};
      w[column] = widen(_mm_load_si128(reinterpret_cast<const __m128i*>(tail.weights)));
    }
    FACET_UNROLL
    for (int row = 0; row < Rows; ++row) {
      for (int i = 0; i < 8; ++i) tail.input[i] = i < left ? input[row * panel.input_stride + whole + i] : 0.0f;
      const __m256 x = _mm256_load_ps(tail.input);
      FACET_UNROLL
      for (int column = 0; column < Columns; ++column)
        sums[row][column] = _mm256_fmadd_ps(w[column], x, sums[row][column]);
    }
  }
  FACET_UNROLL
  for (int row = 0; row < Rows; ++row) {
    alignas(16) float values[kDenseTile];
    _mm_store_ps(values, sum4(sums[row][0], sums[row][1], sums[row][2], sums[row][3]));
    for (int column = 0; column < Columns; ++column) output[row * panel.output_stride + column] = values[column];
  }
}

template <int Columns>
void all_rows(const DensePanel& panel, int column) {
  const std::uint16_t* const* weights = panel.weights + column;
  const float* input = static_cast<const float*>(panel.input);
  float* output = panel.output + column;
  std::int64_t left = panel.rows;
  for (; left >= kRows; left -= kRows) {
    tile_kernel<Columns, kRows>(panel, weights, input, output);
    input += kRows * panel.input_stride;
    output += kRows * panel.output_stride;
  }
  if (left == 1) tile_kernel<Columns, 1>(panel, weights, input, output);
}

}  // namespace

void dense_avx2(const DensePanel& panel) {
  for (int column = 0; column < panel.columns; column += kDenseTile) {
    switch (panel.columns - column) {
      case 1:
        all_rows<1>(panel, column);
        break;
      case 2:
        all_rows<2>(panel, column);
        break;
      case 3:
        all_rows<3>(panel, column);
        break;
      default:
        all_rows<kDenseTile>(panel, column);
        break;
    }
  }
}

}  // namespace facet::linear
