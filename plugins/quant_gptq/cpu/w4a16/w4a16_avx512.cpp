// fp32 activations: weights to fp32 in registers, fp32 FMA.
#include <immintrin.h>

#include "common/unroll.h"
#include "rows16/tiles.h"
#include "w4a16/w4a16_kernels.h"

namespace facet::linear {
namespace {

// Bytes that weights are fetched ahead of use.
constexpr std::int64_t kAhead = 4096;

void prefetch(const std::uint8_t* address, std::int64_t ahead) {
  // As a number: the address may lie past the packed weights, where a prefetch does nothing.
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::intptr_t>(address) + ahead), _MM_HINT_T0);
}

// bf16 of code - 8 for every 16-bit lane. vpermw looks at five bits, the fifth belongs to the next nibble, so the
// second half of the table repeats the first.
__m512i code_table() {
  const __m512 codes = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  // Exact in bf16: the lower halves are zero.
  const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(codes), 16));
  return _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
}

// Weights of step I of a vector. int4: a look-up of both 16-bit halves of a lane at once, which costs less than two of
// 32 bits; nibble I of the low half is an input, that of the high half the input two further. int8: bytes I and I + 2.
template <bool Int8, int I>
void decode(__m512i vector, __m512i table, __m512& low, __m512& high) {
  if constexpr (Int8) {
    const __m512i mask = _mm512_set1_epi32(255);
    const __m512i mean = _mm512_set1_epi32(128);
    low = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_and_si512(_mm512_srli_epi32(vector, 8 * I), mask), mean));
    high = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_and_si512(_mm512_srli_epi32(vector, 8 * I + 16), mask), mean));
  } else {
    const __m512i pair = _mm512_permutexvar_epi16(_mm512_srli_epi16(vector, 4 * I), table);
    low = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
    high = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(-65536)));
  }
}

template <bool Int8, bool Asymmetric>
struct Kind {
  template <int Blocks, int Rows>
  struct Tile {
    // Multiplies step I of a vector: inputs kInput and kInput + 2 of its 8 (int4) or 4.
    template <int I>
    static void step(const __m512i (&vectors)[Blocks], const float* x, std::int64_t stride, __m512i table,
                     __m512 (&dots)[Blocks][Rows]) {
      constexpr int kInput = Int8 ? I : I / 2 + 4 * (I % 2);
      __m512 low[Blocks];
      __m512 high[Blocks];
      FACET_UNROLL
      for (int b = 0; b < Blocks; ++b) decode<Int8, I>(vectors[b], table, low[b], high[b]);
      FACET_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const __m512 first = _mm512_set1_ps(x[r * stride + kInput]);
        FACET_UNROLL
        for (int b = 0; b < Blocks; ++b) dots[b][r] = _mm512_fmadd_ps(low[b], first, dots[b][r]);
        const __m512 second = _mm512_set1_ps(x[r * stride + kInput + 2]);
        FACET_UNROLL
        for (int b = 0; b < Blocks; ++b) dots[b][r] = _mm512_fmadd_ps(high[b], second, dots[b][r]);
      }
    }
    static void run(const A16Task& task, std::int64_t block, std::int64_t row);
  };
};

template <bool Int8, bool Asymmetric>
template <int Blocks, int Rows>
void Kind<Int8, Asymmetric>::Tile<Blocks, Rows>::run(const A16Task& task, std::int64_t block, std::int64_t row) {
  const Rows16& w = task.weights;
  const std::uint8_t* base = w.data + block * w.block_bytes;
  const std::int64_t stride = task.input_stride;
  const float* input = static_cast<const float*>(task.input) + row * stride;
  const __m512i table = code_table();
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
    __m512 dots[Blocks][Rows];
    FACET_UNROLL
    for (int b = 0; b < Blocks; ++b) {
      FACET_UNROLL
      for (int r = 0; r < Rows; ++r) dots[b][r] = _mm512_setzero_ps();
      if constexpr (Asymmetric) {
        const __m512i zeros = _mm512_cvtepu8_epi32(_mm_load_si128(
            reinterpret_cast<const __m128i*>(base + b * w.block_bytes + w.zeros_offset + s * kBlockRows)));
        const __m512 shift = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(Int8 ? 128 : 8), zeros));
        FACET_UNROLL
        for (int r = 0; r < Rows; ++r)
          dots[b][r] = _mm512_mul_ps(shift, _mm512_set1_ps(task.sums[(row + r) * w.segments + s]));
      }
    }
    const float* x = input + s * w.segment;
    for (const std::uint8_t* at = segment; at < segment + w.segment_bytes - 64; at += 64) {
      __m512i vectors[Blocks];
      FACET_UNROLL
      for (int b = 0; b < Blocks; ++b) {
        vectors[b] = _mm512_load_si512(at + b * w.block_bytes);
        prefetch(at + b * w.block_bytes, ahead);
      }
      step<0>(vectors, x, stride, table, dots);
      step<1>(vectors, x, stride, table, dots);
      if constexpr (!Int8) {
        step<2>(vectors, x, stride, table, dots);
        step<3>(vectors, x, stride, table, dots);
      }
      x += Int8 ? 4 : 8;
    }
    FACET_UNROLL
    for (int b = 0; b < Blocks; ++b) {
      const __m512 scale =
          _mm512_load_ps(reinterpret_cast<const float*>(segment + b * w.block_bytes + w.segment_bytes - 64));
      FACET_UNROLL
      for (int r = 0; r < Rows; ++r) sums[b][r] = _mm512_fmadd_ps(dots[b][r], scale, sums[b][r]);
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

void a16_avx512(const A16Task& task) {
  const bool asymmetric = task.weights.zeros_offset != 0;
  if (task.weights.bits == 4) {
    asymmetric ? for_tiles<Kind<false, true>::Tile>(task) : for_tiles<Kind<false, false>::Tile>(task);
  } else {
    asymmetric ? for_tiles<Kind<true, true>::Tile>(task) : for_tiles<Kind<true, false>::Tile>(task);
  }
}

}  // namespace facet::linear
