#include <immintrin.h>

#include "common/unroll.h"
#include "dequant_gemm/gemm_kernels.h"

namespace facet::linear {
namespace {

// 2 x 6 sums of a segment, 2 x 6 running sums, 2 weights and an input fill 27 of the 32 registers.
constexpr int kPanel = 2;
constexpr int kRows = 6;

// Tile: [pair of inputs][block of the panel] vectors of 16 pairs. Blocks past the end are zero.
static_assert(kChunk / 2 * kPanel * 64 <= kTileBytes);

__m512i pair_vector(__m512 low, __m512 high) {
  // Both are exact in bf16, so their lower halves are zero.
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low), 16), _mm512_castps_si512(high));
}

// 16-bit integers of magnitude up to 255 to bf16, which is exact.
__m512i to_bf16(__m512i values) {
  return pair_vector(_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(values, 16), 16)),
                     _mm512_cvtepi32_ps(_mm512_srai_epi32(values, 16)));
}

// bf16 of a number of -16..15 in the lowest five bits of a 16-bit lane, for vpermw.
__m512i small_table() {
  const __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const auto low = (__m256i)_mm512_cvtneps_pbh(_mm512_cvtepi32_ps(count));
  const auto high = (__m256i)_mm512_cvtneps_pbh(_mm512_cvtepi32_ps(_mm512_sub_epi32(count, _mm512_set1_epi32(16))));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

template <bool Int8>
void unpack_block(const Rows16& w, const std::uint8_t* base, std::int64_t s, std::uint16_t* tile) {
  const std::uint8_t* segment = base + s * w.segment_bytes;
  __m512i zeros = _mm512_set1_epi16(static_cast<short>(w.mean));
  if (w.zeros_offset != 0) {
    zeros =
        _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(base + w.zeros_offset + s * kBlockRows)));
    zeros = _mm512_or_si512(zeros, _mm512_slli_epi32(zeros, 16));
  }
  const __m512i table = small_table();
  const __m512i mask = _mm512_set1_epi16(Int8 ? 255 : 15);
  constexpr int kSteps = Int8 ? 2 : 4;
  for (std::int64_t v = 0; v < w.segment / (2 * kSteps); ++v) {
    __m512i vector = _mm512_load_si512(segment + 64 * v);
    FACET_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      // int4: the pairs of inputs (0,2), (4,6), (1,3), (5,7). int8: (0,2), (1,3).
      const int pair = Int8 ? i : i / 2 + 2 * (i % 2);
      const __m512i code = _mm512_sub_epi16(_mm512_and_si512(vector, mask), zeros);
      const __m512i values = Int8 ? to_bf16(code) : _mm512_permutexvar_epi16(code, table);
      _mm512_store_si512(tile + (kSteps * v + pair) * kPanel * 32, values);
      vector = _mm512_srli_epi16(vector, Int8 ? 8 : 4);
    }
  }
}

void unpack(const GemmTask& task, std::int64_t block, std::int64_t begin, std::int64_t end) {
  const Rows16& w = task.weights;
  FACET_UNROLL
  for (int b = 0; b < kPanel; ++b) {
    for (std::int64_t s = begin; s < end; ++s) {
      std::uint16_t* tile = static_cast<std::uint16_t*>(task.tile) + ((s - begin) * w.segment / 2 * kPanel + b) * 32;
      const std::uint8_t* base = w.data + (block + b) * w.block_bytes;
      if (block + b >= task.block_end) {
        for (std::int64_t k = 0; k < w.segment / 2; ++k) _mm512_store_si512(tile + k * kPanel * 32, __m512i{});
      } else if (w.bits == 4) {
        unpack_block<false>(w, base, s, tile);
      } else {
        unpack_block<true>(w, base, s, tile);
      }
    }
  }
}

__m512bh broadcast(const std::uint16_t* pair) {
  std::int32_t two;
  __builtin_memcpy(&two, pair, sizeof two);
  return (__m512bh)_mm512_set1_epi32(two);
}

// Segments [begin, end) of one panel; scales[b] is the first of them in block b.
template <int Rows>
void multiply(const GemmTask& task, const __mmask16 (&masks)[kPanel], const std::uint8_t* const (&scales)[kPanel],
              const std::uint16_t* x, std::int64_t segments, float* y, bool first) {
  const Rows16& w = task.weights;
  __m512 sums[Rows][kPanel];
  FACET_UNROLL
  for (int r = 0; r < Rows; ++r) {
    FACET_UNROLL
    for (int b = 0; b < kPanel; ++b)
      sums[r][b] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(masks[b], y + r * task.output_stride + 16 * b);
  }
  const std::uint16_t* tile = static_cast<const std::uint16_t*>(task.tile);
  for (std::int64_t s = 0; s < segments; ++s, x += w.segment) {
    __m512 dots[Rows][kPanel];
    FACET_UNROLL
    for (int r = 0; r < Rows; ++r) {
      FACET_UNROLL
      for (int b = 0; b < kPanel; ++b) dots[r][b] = _mm512_setzero_ps();
    }
    for (std::int64_t k = 0; k < w.segment; k += 2, tile += kPanel * 32) {
      __m512bh weights[kPanel];
      FACET_UNROLL
      for (int b = 0; b < kPanel; ++b) weights[b] = (__m512bh)_mm512_load_si512(tile + 32 * b);
      FACET_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const __m512bh input = broadcast(x + r * task.input_stride + k);
        FACET_UNROLL
        for (int b = 0; b < kPanel; ++b) dots[r][b] = _mm512_dpbf16_ps(dots[r][b], weights[b], input);
      }
    }
    FACET_UNROLL
    for (int b = 0; b < kPanel; ++b) {
      const __m512 scale = _mm512_load_ps(reinterpret_cast<const float*>(scales[b] + s * w.segment_bytes));
      FACET_UNROLL
      for (int r = 0; r < Rows; ++r) sums[r][b] = _mm512_fmadd_ps(dots[r][b], scale, sums[r][b]);
    }
  }
  FACET_UNROLL
  for (int r = 0; r < Rows; ++r) {
    FACET_UNROLL
    for (int b = 0; b < kPanel; ++b) _mm512_mask_storeu_ps(y + r * task.output_stride + 16 * b, masks[b], sums[r][b]);
  }
}

void panel(const GemmTask& task, std::int64_t block) {
  const Rows16& w = task.weights;
  __mmask16 masks[kPanel];
  FACET_UNROLL
  for (int b = 0; b < kPanel; ++b) {
    const std::int64_t left = block + b < task.block_end ? w.out_features - (block + b) * kBlockRows : 0;
    masks[b] = static_cast<__mmask16>(left >= 16 ? 0xffffu : (1u << left) - 1u);
  }
  const std::int64_t step = kChunk / w.segment;
  for (std::int64_t begin = 0; begin < w.segments; begin += step) {
    const std::int64_t end = begin + step < w.segments ? begin + step : w.segments;
    unpack(task, block, begin, end);
    const std::uint8_t* scales[kPanel];
    FACET_UNROLL
    for (int b = 0; b < kPanel; ++b) {
      // A block past the end is multiplied by the scales of the last one; its columns are masked.
      const std::int64_t real = block + b < task.block_end ? block + b : task.block_end - 1;
      scales[b] = w.data + real * w.block_bytes + (begin + 1) * w.segment_bytes - 64;
    }
    const std::uint16_t* x = static_cast<const std::uint16_t*>(task.input) + begin * w.segment;
    float* y = task.output + block * kBlockRows;
    std::int64_t row = 0;
    for (; row + kRows <= task.rows; row += kRows) {
      multiply<kRows>(task, masks, scales, x, end - begin, y, begin == 0);
      x += kRows * task.input_stride;
      y += kRows * task.output_stride;
    }
    switch (task.rows - row) {
      case 1:
        multiply<1>(task, masks, scales, x, end - begin, y, begin == 0);
        break;
      case 2:
        multiply<2>(task, masks, scales, x, end - begin, y, begin == 0);
        break;
      case 3:
        multiply<3>(task, masks, scales, x, end - begin, y, begin == 0);
        break;
      case 4:
        multiply<4>(task, masks, scales, x, end - begin, y, begin == 0);
        break;
      case 5:
        multiply<5>(task, masks, scales, x, end - begin, y, begin == 0);
        break;
      default:
        break;
    }
  }
}

}  // namespace

void gemm_avx512_bf16(const GemmTask& task) {
  for (std::int64_t block = task.block_begin; block < task.block_end; block += kPanel) panel(task, block);
}

}  // namespace facet::linear
