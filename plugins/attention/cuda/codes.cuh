// int8 codes as operands of products in bf16, exactly and in few instructions.
#pragma once

#include "attention/cuda/device.cuh"

namespace facet::attention::cuda {

// Codes in bytes 0 and 2 of a word as two bf16. The mantissa has 7 bits: 0x4300 with the low 7 bits of a code is 128
// more than they are, and 0x4300 with its sign bit is 128, or 256 for a code below zero, which is 128 less than its
// low bits.
__device__ __forceinline__ std::uint32_t widen_even(std::uint32_t codes) {
  return subtract_bf16(and_or(codes, 0x007f007fu, 0x43004300u), and_or(codes, 0x00800080u, 0x43004300u));
}
// Those in bytes 1 and 3.
__device__ __forceinline__ std::uint32_t widen_odd(std::uint32_t codes) {
  return widen_even(codes >> 8);
}

// A left operand that meets such words, from pairs of neighbours (c, c + 1) and (c + 2, c + 3).
__device__ __forceinline__ std::uint32_t even_pair(std::uint32_t first, std::uint32_t second) {
  return __byte_perm(first, second, 0x5410);
}
__device__ __forceinline__ std::uint32_t odd_pair(std::uint32_t first, std::uint32_t second) {
  return __byte_perm(first, second, 0x7632);
}

// Queries in shared memory, by all threads of a block: of every 16 channels the even ones, then the odd ones.
template <int kSteps, int kThreads>
__device__ __forceinline__ void arrange_for_codes(std::uint32_t queries, int pitch, int rows) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * kSteps; i += kThreads) {
    const std::uint32_t at = queries + static_cast<std::uint32_t>(i / kSteps * pitch + i % kSteps * 32);
    const uint4 a = load_words(at), b = load_words(at + 16);
    store16(at, make_uint4(even_pair(a.x, a.y), even_pair(a.z, a.w), even_pair(b.x, b.y), even_pair(b.z, b.w)));
    store16(at + 16, make_uint4(odd_pair(a.x, a.y), odd_pair(a.z, a.w), odd_pair(b.x, b.y), odd_pair(b.z, b.w)));
  }
}

}  // namespace facet::attention::cuda
