// bf16 weights times bf16 inputs with vdpbf16ps: 32 inputs a step, fp32 sums.
#include <immintrin.h>

#include "common/unroll.h"
#include "dense/dense_kernels.h"

namespace facet::linear {

namespace {

// Sums of four vectors, in one fixed tree: lane i of the result is the sum of all lanes of vector i.
__m128 sum4(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d abd = _mm512_castps_pd(ab);
  const __m512d cdd = _mm512_castps_pd(cd);
  const __m512 all =
      _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(abd, cdd)), _mm512_castpd_ps(_mm512_unpackhi_pd(abd, cdd)));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

__m512bh load(const std::uint16_t* values) {
  return (__m512bh)_mm512_loadu_si512(values);
}

__m512bh load(const std::uint16_t* values, __mmask32 mask) {
  return (__m512bh)_mm512_maskz_loadu_epi16(mask, values);
}

// 4 x 6 sums, 4 weight vectors and an input vector fill 29 of the 32 registers.
constexpr int kRows = 6;

template <int Columns, int Rows>
void tile_kernel(const DenseTile& tile, const std::uint16_t* input, float* output) {
  __m512 sums[Rows][kDenseColumns];
  FACET_UNROLL
  for (int row = 0; row < Rows; ++row) {
    FACET_UNROLL
    for (int column = 0; column < kDenseColumns; ++column) sums[row][column] = _mm512_setzero_ps();
  }
  const std::int64_t whole = tile.in_features / 32 * 32;
  for (std::int64_t k = 0; k < whole; k += 32) {
    __m512bh w[Columns];
    FACET_UNROLL
    for (int column = 0; column < Columns; ++column) w[column] = load(tile.weights[column] + k);
    FACET_UNROLL
    for (int row = 0; row < Rows; ++row) {
      const __m512bh x = load(input + row * tile.input_stride + k);
      FACET_UNROLL
      for (int column = 0; column < Columns; ++column)
        sums[row][column] = _mm512_dpbf16_ps(sums[row][column], w[column], x);
    }
  }
  if (whole < tile.in_features) {
    const auto mask = static_cast<__mmask32>((1u << (tile.in_features - whole)) - 1);
    __m512bh w[Columns];
    FACET_UNROLL
    for (int column = 0; column < Columns; ++column) w[column] = load(tile.weights[column] + whole, mask);
    FACET_UNROLL
    for (int row = 0; row < Rows; ++row) {
      const __m512bh x = load(input + row * tile.input_stride + whole, mask);
      FACET_UNROLL
      for (int column = 0; column < Columns; ++column)
        sums[row][column] = _mm512_dpbf16_ps(sums[row][column], w[column], x);
    }
  }
  FACET_UNROLL
  for (int row = 0; row < Rows; ++row) {
    const __m128 result = sum4(sums[row][0], sums[row][1], sums[row][2], sums[row][3]);
    _mm_mask_storeu_ps(output + row * tile.output_stride, static_cast<__mmask8>((1u << Columns) - 1), result);
  }
}

template <int Columns>
void all_rows(const DenseTile& tile) {
  const std::uint16_t* input = static_cast<const std::uint16_t*>(tile.input);
  float* output = tile.output;
  std::int64_t left = tile.rows;
  for (; left >= kRows; left -= kRows) {
    tile_kernel<Columns, kRows>(tile, input, output);
    input += kRows * tile.input_stride;
    output += kRows * tile.output_stride;
  }
  switch (left) {
    case 1:
      return tile_kernel<Columns, 1>(tile, input, output);
    case 2:
      return tile_kernel<Columns, 2>(tile, input, output);
    case 3:
      return tile_kernel<Columns, 3>(tile, input, output);
    case 4:
      return tile_kernel<Columns, 4>(tile, input, output);
    case 5:
      return tile_kernel<Columns, 5>(tile, input, output);
    default:
      return;
  }
}

}  // namespace

void dense_avx512_bf16(const DenseTile& tile) {
  switch (tile.columns) {
    case 1:
      return all_rows<1>(tile);
    case 2:
      return all_rows<2>(tile);
    case 3:
      return all_rows<3>(tile);
    default:
      return all_rows<4>(tile);
  }
}

void bf16_avx512(const float* in, std::int64_t count, std::uint16_t* out) {
  for (std::int64_t i = 0; i < count; i += 16) {
    const std::int64_t left = count - i;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffffu : (1u << left) - 1);
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, in + i));
    _mm256_mask_storeu_epi16(out + i, mask, (__m256i)rounded);
  }
}

}  // namespace facet::linear
