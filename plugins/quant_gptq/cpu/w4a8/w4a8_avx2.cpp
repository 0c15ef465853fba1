#include <immintrin.h>

#include "common/unroll.h"
#include "w4a8/w4a8_kernels.h"

namespace facet::linear {
namespace {

// A block is two vectors of 8 rows.
struct Vectors {
  __m256i half[2];
};

// dots += four products of unsigned weights and signed inputs a lane.
template <bool Int8>
__m256i multiply_add(__m256i dots, __m256i weights, __m256i x) {
  if constexpr (!Int8) {
    // Two products of 15 * 127 fit the 16 bits that vpmaddubsw saturates at.
    return _mm256_add_epi32(dots, _mm256_madd_epi16(_mm256_maddubs_epi16(weights, x), _mm256_set1_epi16(1)));
  } else {
    // Two products of 255 * 127 do not: even and odd bytes as 16-bit numbers.
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(weights, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(weights, 8), _mm256_srai_epi16(x, 8));
    return _mm256_add_epi32(dots, _mm256_add_epi32(even, odd));
  }
}

__m256i broadcast(const std::int8_t* codes) {
  std::int32_t four;
  __builtin_memcpy(&four, codes, sizeof four);
  return _mm256_set1_epi32(four);
}

void store(float* out, std::int64_t left, __m256 values) {
  if (left >= 8) {
    _mm256_storeu_ps(out, values);
    return;
  }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, values);
  for (std::int64_t i = 0; i < left; ++i) out[i] = lanes[i];
}

// One block and `Rows` rows of x.
template <bool Int8, int Rows>
void tile(const A8Task& task, std::int64_t block, std::int64_t row) {
  const Rows16& w = task.weights;
  const std::int64_t inputs = w.segments * w.segment;
  const std::uint8_t* base = w.data + block * w.block_bytes;
  const __m256i low = _mm256_set1_epi8(15);
  __m256 sums[Rows][2];
  FACET_UNROLL
  for (int r = 0; r < Rows; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_ps();
  for (std::int64_t s = 0; s < w.segments; ++s) {
    const std::uint8_t* segment = base + s * w.segment_bytes;
    Vectors dots[Rows];
    FACET_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const __m256i offset = _mm256_set1_epi32(task.offsets[(row + r) * w.segments + s]);
      FACET_UNROLL
      for (int h = 0; h < 2; ++h) {
        dots[r].half[h] = offset;
        if (w.zeros_offset != 0) {
          const auto* zeros = reinterpret_cast<const __m128i*>(base + w.zeros_offset + s * kBlockRows + 8 * h);
          dots[r].half[h] = _mm256_mullo_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64(zeros)), offset);
        }
      }
    }
    const std::int64_t vectors = (w.segment_bytes - 64) / 64;
    for (std::int64_t v = 0; v < vectors; ++v) {
      FACET_UNROLL
      for (int h = 0; h < 2; ++h) {
        const __m256i vector = _mm256_load_si256(reinterpret_cast<const __m256i*>(segment + 64 * v + 32 * h));
        const __m256i first = Int8 ? vector : _mm256_and_si256(vector, low);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(vector, 4), low);
        FACET_UNROLL
        for (int r = 0; r < Rows; ++r) {
          const std::int8_t* x = task.codes + (row + r) * inputs + s * w.segment + (Int8 ? 4 : 8) * v;
          dots[r].half[h] = multiply_add<Int8>(dots[r].half[h], first, broadcast(x));
          if constexpr (!Int8) dots[r].half[h] = multiply_add<Int8>(dots[r].half[h], second, broadcast(x + 4));
        }
      }
    }
    const float* scales = reinterpret_cast<const float*>(segment + w.segment_bytes - 64);
    FACET_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const __m256 scale_x = _mm256_set1_ps(task.scales[(row + r) * w.segments + s]);
      FACET_UNROLL
      for (int h = 0; h < 2; ++h) {
        const __m256 dot = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[r].half[h]), scale_x);
        sums[r][h] = _mm256_fmadd_ps(dot, _mm256_load_ps(scales + 8 * h), sums[r][h]);
      }
    }
  }
  FACET_UNROLL
  for (int r = 0; r < Rows; ++r) {
    FACET_UNROLL
    for (int h = 0; h < 2; ++h) {
      const std::int64_t column = block * kBlockRows + 8 * h;
      store(task.output + (row + r) * task.output_stride + column, w.out_features - column, sums[r][h]);
    }
  }
}

template <bool Int8>
void all(const A8Task& task) {
  for (std::int64_t block = task.block_begin; block < task.block_end; ++block) {
    std::int64_t row = 0;
    for (; row + 2 <= task.rows; row += 2) tile<Int8, 2>(task, block, row);
    if (row < task.rows) tile<Int8, 1>(task, block, row);
  }
}

}  // namespace

void a8_avx2(const A8Task& task) {
  task.weights.bits == 4 ? all<false>(task) : all<true>(task);
}

}  // namespace facet::linear
