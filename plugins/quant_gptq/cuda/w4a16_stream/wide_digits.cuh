// Inputs of wide.cuh as digits: fixed-point numbers of a sign and 14 bits under one power of two for each segment of a
// row.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/gemv.cuh"
#include "quant_gptq/cuda/w4a16_stream/wide.h"

namespace facet::linear {

template <int SEGMENTS, bool ASYMMETRIC, bool INT4>
struct WideDigits {
  static constexpr unsigned kBits = 14;  // of the larger values, and a sign
  static constexpr std::uint32_t kMagnitudes = 0x7fff7fffu;

  // 16 bytes of a row of the chunk's digits.
  __device__ __forceinline__ static unsigned char* place(unsigned char* chunk, int digit, int row, int piece) {
    return chunk + digit * (kWideRows * 128) + row * 128 + (piece ^ (row & 7)) * 16;
  }

  // The exponent of a segment's largest value, from magnitudes of which LANES lanes side by side have the largest of
  // theirs; NaN and infinity are larger than any number.
  template <int LANES>
  __device__ __forceinline__ static unsigned exponent_of(std::uint32_t largest) {
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
      largest = __vmaxu2(largest, __shfl_xor_sync(~0u, largest, offset));
    return max(max(largest >> 16, largest & 0xffffu) >> 7, kBits + 4);
  }
  __device__ __forceinline__ static float scale_of(unsigned exponent) {
    return __uint_as_float((253 + kBits - exponent) << 23);
  }
  // What a unit of the digits is worth, of products with 16 times int4 codes a sixteenth.
  __device__ __forceinline__ static float step_of(unsigned exponent) {
    constexpr unsigned kSixteenth = INT4 && !ASYMMETRIC ? 4 : 0;
    return exponent < 255 ? __uint_as_float((exponent - (kBits - 1) - kSixteenth) << 23) : __uint_as_float(0x7fc00000u);
  }

  // Two digits in the low bytes, the second of them with an offset of 128. No more than 2^14 in size, so both fit.
  __device__ __forceinline__ static std::uint32_t fixed(float value, float scale) {
    return __float_as_uint(fmaf(value, scale, kMagic + 128.0f));
  }
  // Of two bf16: both low digits, both high ones.
  __device__ __forceinline__ static std::uint32_t fixed_pair(std::uint32_t pair, float scale) {
    return __byte_perm(fixed(low_bf16(pair), scale), fixed(high_bf16(pair), scale), 0x5140);
  }

  // With zero codes, what inputs sum up to, too: the sum of digits over LANES lanes side by side.
  template <int LANES>
  __device__ __forceinline__ static int sum_of(int low, int high) {
    int sum = high * 256 + low;
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    return sum;
  }
};

// Where the blocks of norm_blocks.cuh write what blocks that multiply copy: digits and pairs as in their shared memory.
template <int SEGMENTS, bool ASYMMETRIC, bool INT4>
class WideNormOutput {
 public:
  __device__ __forceinline__ explicit WideNormOutput(const WideArgs& a) : digits_(a.digits), pairs_(a.pairs) {}

  // Inputs 4 at.. of a row, of which a warp has those of a chunk; zero where there are none.
  __device__ __forceinline__ void write(int row, int at, uint2 words) const {
    const int lane = at % 32;
    const std::uint32_t largest = __vmaxu2(words.x & Digits::kMagnitudes, words.y & Digits::kMagnitudes);
    const unsigned exponent = Digits::template exponent_of<kLanes>(largest);
    const float scale = Digits::scale_of(exponent);
    // A word of codes has inputs 2t, 2t+8, 2t+1, 2t+9 of 16. A lane of four has the first or the last two pairs of two
    // words, the lane two from it the others: each makes one of the words.
    const std::uint32_t pairs[] = {Digits::fixed_pair(words.x, scale), Digits::fixed_pair(words.y, scale)};
    const bool last = (lane & 2) != 0;
    const std::uint32_t theirs = __shfl_xor_sync(~0u, last ? pairs[0] : pairs[1], 2);
    const std::uint32_t even = last ? theirs : pairs[0];
    const std::uint32_t odd = last ? pairs[1] : theirs;
    const std::uint32_t low = __byte_perm(even, odd, 0x5140) ^ 0x80808080u;
    const std::uint32_t high = __byte_perm(even, odd, 0x7362);
    const int word = 2 * (lane & 1) + (last ? 1 : 0);
    unsigned char* const chunk = digits_ + at / 32 * kWideChunkDigitBytes;
    *reinterpret_cast<std::uint32_t*>(Digits::place(chunk, 0, row, lane / 4) + 4 * word) = high;
    *reinterpret_cast<std::uint32_t*>(Digits::place(chunk, 1, row, lane / 4) + 4 * word) = low;
    auto* worth =
        reinterpret_cast<float*>(pairs_ + at / 32 * (SEGMENTS * kWidePairBytes)) + lane / kLanes * kWideRows + row;
    const float step = Digits::step_of(exponent);
    if (lane % kLanes == 0) worth[0] = step;
    if constexpr (ASYMMETRIC) {
      const int sum = Digits::template sum_of<kLanes>(__dp4a(static_cast<int>(low), 0x01010101, 0),
                                                      __dp4a(static_cast<int>(high), 0x01010101, 0));
      if (lane % kLanes == 0) worth[SEGMENTS * kWideRows] = step * static_cast<float>(sum);
    }
  }

 private:
  using Digits = WideDigits<SEGMENTS, ASYMMETRIC, INT4>;
  static constexpr int kLanes = 32 / SEGMENTS;  // of a segment

  unsigned char* digits_;
  unsigned char* pairs_;
};

}  // namespace facet::linear
