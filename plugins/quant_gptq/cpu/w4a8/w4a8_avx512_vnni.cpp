#include <immintrin.h>

#include "common/unroll.h"
#include "rows16/tiles.h"
#include "w4a8/w4a8_kernels.h"

namespace facet::linear {
namespace {

// Bytes that weights are fetched ahead of use. Far enough to hide a DRAM access behind a row's work on a page.
constexpr std::int64_t kAhead = 4096;

template <bool Int8, bool Asymmetric>
struct Kind {
  template <int Blocks, int Rows>
  struct Tile {
    static void run(const A8Task& task, std::int64_t block, std::int64_t row);
  };
};

__m512i broadcast(const std::int8_t* codes) {
  std::int32_t four;
  __builtin_memcpy(&four, codes, sizeof four);
  return _mm512_set1_epi32(four);
}

void prefetch(const std::uint8_t* address, std::int64_t ahead) {
  // As a number: the address may lie past the packed weights, where a prefetch does nothing.
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::intptr_t>(address) + ahead), _MM_HINT_T0);
}

template <bool Int8, bool Asymmetric>
template <int Blocks, int Rows>
void Kind<Int8, Asymmetric>::Tile<Blocks, Rows>::run(const A8Task& task, std::int64_t block, std::int64_t row) {
  const Rows16& w = task.weights;
  const std::int64_t inputs = w.segments * w.segment;
  const std::uint8_t* base = w.data + block * w.block_bytes;
  const std::int8_t* codes = task.codes + row * inputs;
  const float* scales = task.scales + row * w.segments;
  const std::int32_t* offsets = task.offsets + row * w.segments;
  const __m512i low = _mm512_set1_epi8(15);
  __m512 sums[Blocks][Rows];
  FACET_UNROLL
  for (int b = 0; b < Blocks; ++b) {
    FACET_UNROLL
    for (int r = 0; r < Rows; ++r) sums[b][r] = _mm512_setzero_ps();
  }

  for (std::int64_t s = 0; s < w.segments; ++s) {
    const std::uint8_t* segment = base + s * w.segment_bytes;
    // Near the end of a block: the start of the same block of the next tile.
    const std::int64_t ahead =
        s * w.segment_bytes + kAhead < w.block_bytes ? kAhead : kAhead + (Blocks - 1) * w.block_bytes;
    const std::int8_t* x = codes + s * w.segment;
    __m512i dots[Blocks][Rows];
    FACET_UNROLL
    for (int b = 0; b < Blocks; ++b) {
      __m512i zeros{};
      if constexpr (Asymmetric)
        zeros = _mm512_cvtepu8_epi32(_mm_load_si128(
            reinterpret_cast<const __m128i*>(base + b * w.block_bytes + w.zeros_offset + s * kBlockRows)));
      FACET_UNROLL
      for (int r = 0; r < Rows; ++r) {
        dots[b][r] = _mm512_set1_epi32(offsets[r * w.segments + s]);
        // A zero code and a sum of 128 codes fit 16 bits; the upper halves of `zeros` are 0.
        if constexpr (Asymmetric) dots[b][r] = _mm512_madd_epi16(zeros, dots[b][r]);
      }
    }
    const std::int64_t vectors = (w.segment_bytes - 64) / 64;
    for (std::int64_t v = 0; v < vectors; ++v) {
      __m512i first[Blocks];
      __m512i second[Blocks];
      FACET_UNROLL
      for (int b = 0; b < Blocks; ++b) {
        const std::uint8_t* address = segment + b * w.block_bytes + 64 * v;
        const __m512i vector = _mm512_load_si512(address);
        prefetch(address, ahead);
        if constexpr (Int8) {
          first[b] = vector;
        } else {
          first[b] = _mm512_and_si512(vector, low);
          second[b] = _mm512_and_si512(_mm512_srli_epi16(vector, 4), low);
        }
      }
      FACET_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const std::int8_t* from = x + r * inputs + (Int8 ? 4 : 8) * v;
        const __m512i x0 = broadcast(from);
        FACET_UNROLL
        for (int b = 0; b < Blocks; ++b) dots[b][r] = _mm512_dpbusd_epi32(dots[b][r], first[b], x0);
        if constexpr (!Int8) {
          const __m512i x1 = broadcast(from + 4);
          FACET_UNROLL
          for (int b = 0; b < Blocks; ++b) dots[b][r] = _mm512_dpbusd_epi32(dots[b][r], second[b], x1);
        }
      }
    }
    FACET_UNROLL
    for (int b = 0; b < Blocks; ++b) {
      const __m512 scale =
          _mm512_load_ps(reinterpret_cast<const float*>(segment + b * w.block_bytes + w.segment_bytes - 64));
      FACET_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const __m512 dot = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[b][r]), _mm512_set1_ps(scales[r * w.segments + s]));
        sums[b][r] = _mm512_fmadd_ps(dot, scale, sums[b][r]);
      }
    }
  }
  FACET_UNROLL
  for (int b = 0; b < Blocks; ++b) {
    const std::int64_t column = (block + b) * kBlockRows;
    const std::int64_t left = w.out_features - column;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffffu : (1u << left) - 1u);
    FACET_UNROLL
    for (int r = 0; r < Rows; ++r)
      _mm512_mask_storeu_ps(task.output + (row + r) * task.output_stride + column, mask, sums[b][r]);
  }
}

}  // namespace

void a8_avx512_vnni(const A8Task& task) {
  const bool asymmetric = task.weights.zeros_offset != 0;
  if (task.weights.bits == 4) {
    asymmetric ? for_tiles<Kind<false, true>::Tile>(task) : for_tiles<Kind<false, false>::Tile>(task);
  } else {
    asymmetric ? for_tiles<Kind<true, true>::Tile>(task) : for_tiles<Kind<true, false>::Tile>(task);
  }
}

}  // namespace facet::linear
