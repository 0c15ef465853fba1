// bf16 weights widened to fp32, fp32 FMA, 16 inputs a step.
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

__m512 widen(__m256i values) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

// 4 x 6 sums, 4 weight vectors and an input vector fill 29 of the 32 registers.
constexpr int kRows = 6;

// Inputs taken at a time when there are several tiles of rows: six rows of them stay in a 32 KiB L1 while the tiles of
// the panel pass by. A multiple of the vector length.
constexpr std::int64_t kChunk = 1024;

// Sums of one register tile between chunks.
using Carry = float[kRows * kDenseTile * 16];

struct Place {
  const std::uint16_t* const* weights;  // of the tile
  const float* input;                   // first row of the tile
  float* output;
  std::int64_t begin;  // inputs [begin, end)
  std::int64_t end;
  float* carry;
};

// Columns of W by Rows of x. Absent columns sum to zero, so that a column's result does not depend on the tile.
template <int Columns, int Rows>
void tile_kernel(const DensePanel& panel, const Place& at) {
  __m512 sums[Rows][kDenseTile];
  FACET_UNROLL
  for (int row = 0; row < Rows; ++row) {
    FACET_UNROLL
    for (int column = 0; column < kDenseTile; ++column)
      sums[row][column] = at.begin == 0 || column >= Columns
                              ? _mm512_setzero_ps()
                              : _mm512_load_ps(at.carry + (row * kDenseTile + column) * 16);
  }
  const std::int64_t whole = at.begin + (at.end - at.begin) / 16 * 16;
  for (std::int64_t k = at.begin; k < whole; k += 16) {
    __m512 w[Columns];
    FACET_UNROLL
    for (int column = 0; column < Columns; ++column) {
      const std::uint16_t* from = at.weights[column] + k;
      w[column] = widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
      // Few rows wait for memory: the same place of the next tile.
      if constexpr (Rows < kRows)
        _mm_prefetch(
            reinterpret_cast<const char*>(reinterpret_cast<std::intptr_t>(from) + kDenseTile * panel.row_bytes),
            _MM_HINT_T1);
    }
    FACET_UNROLL
    for (int row = 0; row < Rows; ++row) {
      const __m512 x = _mm512_loadu_ps(at.input + row * panel.input_stride + k);
      FACET_UNROLL
      for (int column = 0; column < Columns; ++column)
        sums[row][column] = _mm512_fmadd_ps(w[column], x, sums[row][column]);
    }
  }
  if (whole < at.end) {
    const auto mask = static_cast<__mmask16>((1u << (at.end - whole)) - 1);
    __m512 w[Columns];
    FACET_UNROLL
    for (int column = 0; column < Columns; ++column)
      w[column] = widen(_mm256_maskz_loadu_epi16(mask, at.weights[column] + whole));
    FACET_UNROLL
    for (int row = 0; row < Rows; ++row) {
      const __m512 x = _mm512_maskz_loadu_ps(mask, at.input + row * panel.input_stride + whole);
      FACET_UNROLL
      for (int column = 0; column < Columns; ++column)
        sums[row][column] = _mm512_fmadd_ps(w[column], x, sums[row][column]);
    }
  }
  if (at.end < panel.in_features) {
    FACET_UNROLL
    for (int row = 0; row < Rows; ++row) {
      FACET_UNROLL
      for (int column = 0; column < Columns; ++column)
        _mm512_store_ps(at.carry + (row * kDenseTile + column) * 16, sums[row][column]);
    }
    return;
  }
  FACET_UNROLL
  for (int row = 0; row < Rows; ++row) {
    const __m128 result = sum4(sums[row][0], sums[row][1], sums[row][2], sums[row][3]);
    _mm_mask_storeu_ps(at.output + row * panel.output_stride, static_cast<__mmask8>((1u << Columns) - 1), result);
  }
}

template <int Columns>
void tile_of(const DensePanel& panel, const Place& at, std::int64_t rows) {
  switch (rows) {
    case 1:
      return tile_kernel<Columns, 1>(panel, at);
    case 2:
      return tile_kernel<Columns, 2>(panel, at);
    case 3:
      return tile_kernel<Columns, 3>(panel, at);
    case 4:
      return tile_kernel<Columns, 4>(panel, at);
    case 5:
      return tile_kernel<Columns, 5>(panel, at);
    default:
      return tile_kernel<Columns, kRows>(panel, at);
  }
}

}  // namespace

void dense_avx512(const DensePanel& panel) {
  alignas(64) Carry carries[kDensePanel / kDenseTile];
  const std::int64_t chunk = panel.rows > kRows ? kChunk : panel.in_features;
  Place at{};
  for (std::int64_t row = 0; row < panel.rows; row += kRows) {
    const std::int64_t rows = panel.rows - row < kRows ? panel.rows - row : kRows;
    at.input = static_cast<const float*>(panel.input) + row * panel.input_stride;
    for (at.begin = 0; at.begin < panel.in_features; at.begin = at.end) {
      at.end = at.begin + chunk < panel.in_features ? at.begin + chunk : panel.in_features;
      for (int column = 0; column < panel.columns; column += kDenseTile) {
        at.weights = panel.weights + column;
        at.output = panel.output + row * panel.output_stride + column;
        at.carry = carries[column / kDenseTile];
        switch (panel.columns - column) {
          case 1:
            tile_of<1>(panel, at, rows);
            break;
          case 2:
            tile_of<2>(panel, at, rows);
            break;
          case 3:
            tile_of<3>(panel, at, rows);
            break;
          default:
            tile_of<kDenseTile>(panel, at, rows);
            break;
        }
      }
    }
  }
}

}  // namespace facet::linear
