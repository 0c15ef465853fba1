// Codes of the packed form to bf16 operands, exactly: code minus zero has at most 8 bits.
#pragma once

#include "quant_gptq/cuda/device/ptx.cuh"

namespace facet::linear {

// 16-byte loads that hold the codes of `steps` steps of 16 inputs of a tile, one lane's share.
template <int BITS, int STEPS>
inline constexpr int kCodeLoads = (BITS * STEPS + 15) / 16;

__device__ __forceinline__ __nv_bfloat162 as_bf16(std::uint32_t pair) {
  return *reinterpret_cast<const __nv_bfloat162*>(&pair);
}
__device__ __forceinline__ std::uint32_t as_bits(__nv_bfloat162 pair) {
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

inline constexpr std::uint32_t kNibbles = 0x000f000fu;
inline constexpr std::uint32_t kExponent = 0x43004300u;  // 128 as bf16: its mantissa has room for a nibble

// What int4 codes are subtracted from: 128 + zero of rows g and g+8, as pairs. `zeros`: the two zero codes as bytes.
__device__ __forceinline__ void zero_pairs(std::uint32_t zeros, std::uint32_t (&pairs)[2]) {
  pairs[0] = __byte_perm(zeros, 0x43, 0x4040);
  pairs[1] = __byte_perm(zeros, 0x43, 0x4141);
}

// The operand of one step from its word, rows g and g+8 by inputs 2t.. and 2t+8...
__device__ __forceinline__ void operand_int4(std::uint32_t word, const std::uint32_t (&zero)[2],
                                             std::uint32_t (&a)[4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r)
    a[r] = as_bits(__hsub2(as_bf16(masked_or(word >> (4 * r), kNibbles, kExponent)), as_bf16(zero[r & 1])));
}

// The same of int8, zero 128: 16 (high nibble - 8) + low nibble. Words of rows g and g+8.
__device__ __forceinline__ void operand_int8(std::uint32_t row, std::uint32_t row8, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kHighExponent = 0x43084308u;  // 128 + 8
  constexpr std::uint32_t kSixteen = 0x41804180u;
#pragma unroll
  for (int r = 0; r < 4; ++r) {  // rows g, g+8, g, g+8; bytes 0 and 2, then 1 and 3
    const std::uint32_t word = ((r & 1) != 0 ? row8 : row) >> (8 * (r >> 1));
    const __nv_bfloat162 low = __hsub2(as_bf16(masked_or(word, kNibbles, kExponent)), as_bf16(kExponent));
    const __nv_bfloat162 high = __hsub2(as_bf16(masked_or(word >> 4, kNibbles, kExponent)), as_bf16(kHighExponent));
    a[r] = as_bits(__hfma2(high, as_bf16(kSixteen), low));
  }
}

// Operands of STEPS (2, 4 or 8) steps of a tile from step FIRST of its chunk on; `tile`: the lane's first 16 bytes.
template <int BITS, int STEPS>
__device__ __forceinline__ void load_codes(const unsigned char* tile, int first,
                                           uint4 (&words)[kCodeLoads<BITS, STEPS>]) {
  if constexpr (BITS == 4 && STEPS == 2) {  // half of 16 bytes
    const uint2 half = *reinterpret_cast<const uint2*>(tile + first / 4 * 512 + first % 4 * 4);
    words[0] = make_uint4(half.x, half.y, 0, 0);
  } else {
#pragma unroll
    for (int i = 0; i < kCodeLoads<BITS, STEPS>; ++i)
      words[i] = *reinterpret_cast<const uint4*>(tile + (first * BITS / 16 + i) * 512);
  }
}

template <int BITS, int STEPS>
__device__ __forceinline__ void operands_of(const uint4 (&words)[kCodeLoads<BITS, STEPS>],
                                            const std::uint32_t (&zero)[2], std::uint32_t (&a)[STEPS][4]) {
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    if constexpr (BITS == 4) {
      const uint4& quad = words[step / 4];
      const int i = step % 4;
      operand_int4(i == 0 ? quad.x : i == 1 ? quad.y : i == 2 ? quad.z : quad.w, zero, a[step]);
    } else {
      const uint4& quad = words[step / 2];
      if (step % 2 == 0) {
        operand_int8(quad.x, quad.y, a[step]);
      } else {
        operand_int8(quad.z, quad.w, a[step]);
      }
    }
  }
}

}  // namespace facet::linear
