// bf16 activations: int4 weights to pairs of bf16 in registers, vdpbf16ps.
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
  const __m512i codes =
      _mm512_sub_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(8));
  const __m256i half = (__m256i)_mm512_cvtneps_pbh(_mm512_cvtepi32_ps(codes));
  return _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
}

__m512bh broadcast(const std::uint16_t* pair) {
  std::int32_t two;
  __builtin_memcpy(&two, pair, sizeof two);
  return (__m512bh)_mm512_set1_epi32(two);
}

template <bool Asymmetric>
struct Kind {
  template <int Blocks, int Rows>
  struct Tile {
    // Nibble I of every 16-bit half lane: the pairs of inputs (0,2), (4,6), (1,3), (5,7).
    template <int I>
    static void step(const __m512i (&vectors)[Blocks], const std::uint16_t* x, std::int64_t stride, __m512i table,
                     __m512 (&dots)[Blocks][Rows]) {
      constexpr int kPair = I / 2 + 2 * (I % 2);
      __m512bh weights[Blocks];
      FACET_UNROLL
      for (int b = 0; b < Blocks; ++b)
        weights[b] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(vectors[b], 4 * I), table);
      FACET_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const __m512bh input = broadcast(x + r * stride + 2 * kPair);
        FACET_UNROLL
        for (int b = 0; b < Blocks; ++b) dots[b][r] = _mm512_dpbf16_ps(dots[b][r], weights[b], input);
      }
    }
    static void run(const A16Task& task, std::int64_t block, std::int64_t row);
  };
};

template <bool Asymmetric>
template <int Blocks, int Rows>
void Kind<Asymmetric>::Tile<Blocks, Rows>::run(const A16Task& task, std::int64_t block, std::int64_t row) {
  const Rows16& w = task.weights;
  const std::uint8_t* base = w.data + block * w.block_bytes;
  const std::int64_t stride = task.input_stride;
  const std::uint16_t* input = static_cast<const std::uint16_t*>(task.input) + row * stride;
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
        const __m512 shift = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(8), zeros));
        FACET_UNROLL
        for (int r = 0; r < Rows; ++r)
          dots[b][r] = _mm512_mul_ps(shift, _mm512_set1_ps(task.sums[(row + r) * w.segments + s]));
      }
    }
    const std::uint16_t* x = input + s * w.segment;
    for (const std::uint8_t* at = segment; at < segment + w.segment_bytes - 64; at += 64) {
      __m512i vectors[Blocks];
      FACET_UNROLL
      for (int b = 0; b < Blocks; ++b) {
        vectors[b] = _mm512_load_si512(at + b * w.block_bytes);
        prefetch(at + b * w.block_bytes, ahead);
      }
      step<0>(vectors, x, stride, table, dots);
      step<1>(vectors, x, stride, table, dots);
      step<2>(vectors, x, stride, table, dots);
      step<3>(vectors, x, stride, table, dots);
      x += 8;
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

void a16_avx512_bf16(const A16Task& task) {
  task.weights.zeros_offset != 0 ? for_tiles<Kind<true>::Tile>(task) : for_tiles<Kind<false>::Tile>(task);
}

}  // namespace facet::linear
