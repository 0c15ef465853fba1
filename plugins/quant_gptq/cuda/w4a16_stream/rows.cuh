// 5 to 64 rows: a block takes 8 units (256 rows of W), a warp each, and a share of the inputs. Codes become bf16
// exactly (code - zero has at most 8 bits) and mma.m16n8k16 multiplies; scales come onto the fp32 sums of a segment.
//
// A stage of the ring is one chunk of each unit and the same chunk of all activations, which all warps use. The
// activations are brought to operand order by a small launch before. Blocks that share a row of units and differ in
// their inputs form a cluster and add up their sums through its shared memory, in order.
#pragma once

#include "quant_gptq/cuda/device/ptx.cuh"
#include "quant_gptq/cuda/w4a16_stream/stream.h"

namespace facet::linear {

inline constexpr int kRowsWarps = 8;  // units of a block
inline constexpr int kRowsThreads = (kRowsWarps + 1) * 32;
inline constexpr int kRowsMaxStages = 12;
inline constexpr int kRowsBarrierBytes = 16 * kRowsMaxStages;
inline constexpr int kTileColumns = 8;                         // activation rows of an operand
inline constexpr int kOperandBytes = 2048;                     // of a chunk of 8 activation rows
inline constexpr int kSumStride = kRowsWarps * kUnitRows + 4;  // floats from activation row to row: no bank conflicts

__device__ __forceinline__ void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ std::uint32_t subtract_bf16(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 difference =
      __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&difference);
}

// The A operand of step s (16 inputs) of a tile: codes minus zeros, `zero` holds 128 + zero of rows g and g+8 in pairs.
template <int BITS>
__device__ __forceinline__ void operand_a(const uint4 (&words)[BITS / 2], int s, const std::uint32_t (&zero)[2],
                                          std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kNibbles = 0x000f000fu;
  constexpr std::uint32_t kExponent = 0x43004300u;  // 128 as bf16: its mantissa has room for a nibble
  if constexpr (BITS == 4) {
    const uint4 quad = words[s / 4];
    const std::uint32_t word = s % 4 == 0 ? quad.x : s % 4 == 1 ? quad.y : s % 4 == 2 ? quad.z : quad.w;
#pragma unroll
    for (int r = 0; r < 4; ++r) a[r] = subtract_bf16(masked_or(word >> (4 * r), kNibbles, kExponent), zero[r & 1]);
  } else {
    const uint4 quad = words[s / 2];
#pragma unroll
    for (int r = 0; r < 4; ++r) {  // rows g, g+8, g, g+8; bytes 0 and 2, then 1 and 3
      const std::uint32_t word = (s % 2 == 0 ? (r & 1 ? quad.y : quad.x) : (r & 1 ? quad.w : quad.z)) >> (8 * (r >> 1));
      // 16 (high - 8) + low = code - 128
      const std::uint32_t low = subtract_bf16(masked_or(word, kNibbles, kExponent), kExponent);
      const std::uint32_t high = subtract_bf16(masked_or(word >> 4, kNibbles, kExponent), 0x43084308u);
      const std::uint32_t sixteen = 0x41804180u;
      const __nv_bfloat162 code =
          __hfma2(*reinterpret_cast<const __nv_bfloat162*>(&high), *reinterpret_cast<const __nv_bfloat162*>(&sixteen),
                  *reinterpret_cast<const __nv_bfloat162*>(&low));
      a[r] = *reinterpret_cast<const std::uint32_t*>(&code);
    }
  }
}

// Products of this warp's unit with one chunk of the activations, added to acc. `data`: the unit's chunk; `x`: the
// operands of the activations.
template <int BITS, int SEGMENTS, bool ASYMMETRIC, int TILES>
__device__ __forceinline__ void multiply_rows(const unsigned char* data, const unsigned char* x, int lane,
                                              float (&acc)[2][TILES][4]) {
  constexpr int kTileBytes = BITS * 256;
  constexpr int kSteps = 8 / SEGMENTS;
  const int g = lane >> 2;
  uint4 words[2][BITS / 2];
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < BITS / 2; ++i)
      words[tile][i] = *reinterpret_cast<const uint4*>(data + tile * kTileBytes + i * 512 + lane * 16);
  }
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
    const uint2 packed = *reinterpret_cast<const uint2*>(data + 2 * kTileBytes + segment * 64 + g * 8);
    std::uint32_t codes = 0x08080808u;
    if constexpr (ASYMMETRIC)
      codes = *reinterpret_cast<const std::uint32_t*>(data + 2 * kTileBytes + SEGMENTS * 64 + segment * 32 + g * 4);
    std::uint32_t a[2][kSteps][4];
    float2 scales[2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const std::uint32_t pair = tile == 0 ? packed.x : packed.y;
      scales[tile] = __half22float2(*reinterpret_cast<const __half2*>(&pair));
      std::uint32_t zero[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::uint32_t code = (codes >> (16 * tile + 8 * r)) & 255u;
        zero[r] = 0x43004300u + code * 0x10001u;
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        operand_a<BITS>(words[tile], segment * kSteps + step, zero, a[tile][step]);
    }
#pragma unroll
    for (int n = 0; n < TILES; ++n) {
      float c[2][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        const uint4 b =
            *reinterpret_cast<const uint4*>(x + n * kOperandBytes + (segment * kSteps + step) / 2 * 512 + lane * 16);
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          mma_bf16(c[tile], a[tile][step], b.x, b.y);
          mma_bf16(c[tile], a[tile][step + 1], b.z, b.w);
        }
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        acc[tile][n][0] += scales[tile].x * c[tile][0];
        acc[tile][n][1] += scales[tile].x * c[tile][1];
        acc[tile][n][2] += scales[tile].y * c[tile][2];
        acc[tile][n][3] += scales[tile].y * c[tile][3];
      }
    }
  }
}

}  // namespace facet::linear
