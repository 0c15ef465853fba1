#include <immintrin.h>

#include "common/unroll.h"
#include "dequant_gemm/gemm_kernels.h"

namespace facet::linear {
namespace {

// 4 x 6 sums, 4 weights and an input fill 29 of the 32 registers.
constexpr int kPanel = 4;
constexpr int kRows = 6;

// Tile: [input][block of the panel] vectors of 16 floats. Blocks past the end are zero.
static_assert(kChunk * kPanel * 64 <= kTileBytes);

template <bool Int8>
void unpack_block(const Rows16& w, const std::uint8_t* base, std::int64_t s, float* tile) {
  const std::uint8_t* segment = base + s * w.segment_bytes;
  const __m512 scale = _mm512_load_ps(reinterpret_cast<const float*>(segment + w.segment_bytes - 64));
  const __m512i mask = _mm512_set1_epi32(Int8 ? 255 : 15);
  __m512i zeros = _mm512_set1_epi32(w.mean);
  if (w.zeros_offset != 0)
    zeros =
        _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(base + w.zeros_offset + s * kBlockRows)));
  constexpr int kSteps = Int8 ? 4 : 8;
  for (std::int64_t v = 0; v < w.segment / kSteps; ++v) {
    __m512i vector = _mm512_load_si512(segment + 64 * v);
    FACET_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      // Nibble i of a lane is input i / 2 of the low or high four.
      const int k = Int8 ? i : i / 2 + 4 * (i % 2);
      const __m512i code = _mm512_sub_epi32(_mm512_and_si512(vector, mask), zeros);
      _mm512_store_ps(tile + (kSteps * v + k) * kPanel * 16, _mm512_mul_ps(_mm512_cvtepi32_ps(code), scale));
      vector = _mm512_srli_epi32(vector, Int8 ? 8 : 4);
    }
  }
}

void unpack(const GemmTask& task, std::int64_t block, std::int64_t begin, std::int64_t end) {
  const Rows16& w = task.weights;
  FACET_UNROLL
  for (int b = 0; b < kPanel; ++b) {
    for (std::int64_t s = begin; s < end; ++s) {
      float* tile = static_cast<float*>(task.tile) + ((s - begin) * w.segment * kPanel + b) * 16;
      const std::uint8_t* base = w.data + (block + b) * w.block_bytes;
      if (block + b >= task.block_end) {
        for (std::int64_t k = 0; k < w.segment; ++k) _mm512_store_ps(tile + k * kPanel * 16, _mm512_setzero_ps());
      } else if (w.bits == 4) {
        unpack_block<false>(w, base, s, tile);
      } else {
        unpack_block<true>(w, base, s, tile);
      }
    }
  }
}

template <int Rows>
void multiply(const GemmTask& task, const __mmask16 (&masks)[kPanel], const float* x, std::int64_t inputs, float* y,
              bool first) {
  __m512 sums[Rows][kPanel];
  FACET_UNROLL
  for (int r = 0; r < Rows; ++r) {
    FACET_UNROLL
    for (int b = 0; b < kPanel; ++b)
      sums[r][b] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(masks[b], y + r * task.output_stride + 16 * b);
  }
  const float* tile = static_cast<const float*>(task.tile);
  for (std::int64_t k = 0; k < inputs; ++k, tile += kPanel * 16) {
    __m512 weights[kPanel];
    FACET_UNROLL
    for (int b = 0; b < kPanel; ++b) weights[b] = _mm512_load_ps(tile + 16 * b);
    FACET_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const __m512 input = _mm512_set1_ps(x[r * task.input_stride + k]);
      FACET_UNROLL
      for (int b = 0; b < kPanel; ++b) sums[r][b] = _mm512_fmadd_ps(weights[b], input, sums[r][b]);
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
    const std::int64_t inputs = (end - begin) * w.segment;
    unpack(task, block, begin, end);
    const float* x = static_cast<const float*>(task.input) + begin * w.segment;
    float* y = task.output + block * kBlockRows;
    std::int64_t row = 0;
    for (; row + kRows <= task.rows; row += kRows) {
      multiply<kRows>(task, masks, x, inputs, y, begin == 0);
      x += kRows * task.input_stride;
      y += kRows * task.output_stride;
    }
    switch (task.rows - row) {
      case 1:
        multiply<1>(task, masks, x, inputs, y, begin == 0);
        break;
      case 2:
        multiply<2>(task, masks, x, inputs, y, begin == 0);
        break;
      case 3:
        multiply<3>(task, masks, x, inputs, y, begin == 0);
        break;
      case 4:
        multiply<4>(task, masks, x, inputs, y, begin == 0);
        break;
      case 5:
        multiply<5>(task, masks, x, inputs, y, begin == 0);
        break;
      default:
        break;
    }
  }
}

}  // namespace

void gemm_avx512(const GemmTask& task) {
  for (std::int64_t block = task.block_begin; block < task.block_end; block += kPanel) panel(task, block);
}

}  // namespace facet::linear
