#include <immintrin.h>

#include "common/unroll.h"
#include "dequant_gemm/gemm_kernels.h"
#include "rows16/unpack.h"

namespace facet::linear {
namespace {

struct Columns {
  float* output;
  std::int64_t count;  // of 16
};

__m256 load(const float* from, std::int64_t left) {
  if (left >= 8) return _mm256_loadu_ps(from);
  alignas(32) float lanes[8] = {};
  for (std::int64_t i = 0; i < left; ++i) lanes[i] = from[i];
  return _mm256_load_ps(lanes);
}

void store(float* to, std::int64_t left, __m256 values) {
  if (left >= 8) {
    _mm256_storeu_ps(to, values);
    return;
  }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, values);
  for (std::int64_t i = 0; i < left; ++i) to[i] = lanes[i];
}

// `Rows` rows of x times the 16 rows of W of an unpacked segment: 12 sums, 2 weights and an input in 16 registers.
template <int Rows>
void multiply(const SegmentCodes& segment, std::int64_t inputs, const float* x, std::int64_t x_stride, Columns y,
              std::int64_t y_stride, bool first) {
  __m256 sums[Rows][2];
  FACET_UNROLL
  for (int r = 0; r < Rows; ++r) {
    FACET_UNROLL
    for (int h = 0; h < 2; ++h)
      sums[r][h] = first ? _mm256_setzero_ps() : load(y.output + r * y_stride + 8 * h, y.count - 8 * h);
  }
  for (std::int64_t k = 0; k < inputs; ++k) {
    const __m256 low = _mm256_load_ps(segment.values[k]);
    const __m256 high = _mm256_load_ps(segment.values[k] + 8);
    FACET_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const __m256 input = _mm256_broadcast_ss(x + r * x_stride + k);
      sums[r][0] = _mm256_fmadd_ps(low, input, sums[r][0]);
      sums[r][1] = _mm256_fmadd_ps(high, input, sums[r][1]);
    }
  }
  FACET_UNROLL
  for (int r = 0; r < Rows; ++r) {
    FACET_UNROLL
    for (int h = 0; h < 2; ++h) store(y.output + r * y_stride + 8 * h, y.count - 8 * h, sums[r][h]);
  }
}

}  // namespace

void gemm_avx2(const GemmTask& task) {
  const Rows16& w = task.weights;
  const float* input = static_cast<const float*>(task.input);
  static_assert(sizeof(SegmentCodes) <= kTileBytes);
  SegmentCodes& segment = *static_cast<SegmentCodes*>(task.tile);
  for (std::int64_t block = task.block_begin; block < task.block_end; ++block) {
    const std::int64_t left = w.out_features - block * kBlockRows;
    for (std::int64_t s = 0; s < w.segments; ++s) {
      unpack_segment(w, block, s, segment);
      for (std::int64_t k = 0; k < w.segment; ++k) {
        FACET_UNROLL
        for (int h = 0; h < 16; h += 8)
          _mm256_store_ps(segment.values[k] + h,
                          _mm256_mul_ps(_mm256_load_ps(segment.values[k] + h), _mm256_load_ps(segment.scales + h)));
      }
      const float* x = input + s * w.segment;
      Columns y{task.output + block * kBlockRows, left < kBlockRows ? left : kBlockRows};
      std::int64_t row = 0;
      for (; row + 6 <= task.rows; row += 6) {
        multiply<6>(segment, w.segment, x, task.input_stride, y, task.output_stride, s == 0);
        x += 6 * task.input_stride;
        y.output += 6 * task.output_stride;
      }
      for (; row < task.rows; ++row) {
        multiply<1>(segment, w.segment, x, task.input_stride, y, task.output_stride, s == 0);
        x += task.input_stride;
        y.output += task.output_stride;
      }
    }
  }
}

}  // namespace facet::linear
