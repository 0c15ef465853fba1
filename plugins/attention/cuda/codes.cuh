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

}  // namespace facet::attention::cuda
