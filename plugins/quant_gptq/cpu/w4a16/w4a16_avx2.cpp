#include <immintrin.h>

#include "common/unroll.h"
#include "w4a16/w4a16_kernels.h"

namespace facet::linear {
namespace {

void store(float* out, std::int64_t left, __m256 values) {
  if (left >= 8) {
    _mm256_storeu_ps(out, values);
    return;
  }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, values);
  for (std::int64_t i = 0; i < left; ++i) out[i] = lanes[i];
}

// Half a block (8 rows of W) and `Rows` rows of x.
template <bool Int8, int Rows>
void tile(const A16Task& task, std::int64_t block, int half, std::int64_t row) {
  const Rows16& w = task.weights;
  const std::uint8_t* base = w.data + block * w.block_bytes;
  const float* input = static_cast<const float*>(task.input) + row * task.input_stride;
  const __m256i mask = _mm256_set1_epi32(Int8 ? 255 : 15);
  __m256 sums[Rows];
  FACET_UNROLL
  for (int r = 0; r < Rows; ++r) sums[r] = _mm256_setzero_ps();
  for (std::int64_t s = 0; s < w.segments; ++s) {
    const std::uint8_t* segment = base + s * w.segment_bytes;
    __m256i zeros = _mm256_set1_epi32(w.mean);
    if (w.zeros_offset != 0) {
      const std::uint8_t* codes = base + w.zeros_offset + s * kBlockRows + 8 * half;
      zeros = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    }
    __m256 dots[Rows];
    FACET_UNROLL
    for (int r = 0; r < Rows; ++r) dots[r] = _mm256_setzero_ps();
    const float* x = input + s * w.segment;
    for (const std::uint8_t* at = segment; at < segment + w.segment_bytes - 64; at += 64) {
      __m256i vector = _mm256_load_si256(reinterpret_cast<const __m256i*>(at + 32 * half));
      constexpr int kSteps = Int8 ? 4 : 8;
      FACET_UNROLL
      for (int i = 0; i < kSteps; ++i) {
        // Nibble i of a lane is input i / 2 of the low or high four.
        const int k = Int8 ? i : i / 2 + 4 * (i % 2);
        const __m256 weights = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(vector, mask), zeros));
        vector = _mm256_srli_epi32(vector, Int8 ? 8 : 4);
        FACET_UNROLL
        for (int r = 0; r < Rows; ++r)
          dots[r] = _mm256_fmadd_ps(weights, _mm256_set1_ps(x[r * task.input_stride + k]), dots[r]);
      }
      x += kSteps;
    }
    const __m256 scale = _mm256_load_ps(reinterpret_cast<const float*>(segment + w.segment_bytes - 64) + 8 * half);
    FACET_UNROLL
    for (int r = 0; r < Rows; ++r) sums[r] = _mm256_fmadd_ps(dots[r], scale, sums[r]);
  }
  const std::int64_t column = block * kBlockRows + 8 * half;
  FACET_UNROLL
  for (int r = 0; r < Rows; ++r)
    store(task.output + (row + r) * task.output_stride + column, w.out_features - column, sums[r]);
}

template <bool Int8>
void all(const A16Task& task) {
  for (std::int64_t block = task.block_begin; block < task.block_end; ++block) {
    FACET_UNROLL
    for (int half = 0; half < 2; ++half) {
      std::int64_t row = 0;
      // Four sums of a segment, four running sums and what they need fill the 16 registers.
      for (; row + 4 <= task.rows; row += 4) tile<Int8, 4>(task, block, half, row);
      for (; row < task.rows; ++row) tile<Int8, 1>(task, block, half, row);
    }
  }
}

}  // namespace

void a16_avx2(const A16Task& task) {
  task.weights.bits == 4 ? all<false>(task) : all<true>(task);
}

}  // namespace facet::linear
