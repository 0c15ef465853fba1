// One row, and two behind a fused norm: a block streams units of 32 rows of W through a ring in shared memory.
//
// Activations are fixed point: within a segment (the inputs under one scale) every value is rounded to a multiple of
// 2^-15 of a power of two at or above the largest, and cut into two signed 8-bit digits. Each digit of each row is a
// column of the B operand of mma.m16n8k32, whose A operand takes codes as they are: two masks give 8 weights. Sums are
// exact in int32; they start at the bits of 1.5 * 2^23, so they are floats too, and one multiply-add with the digit's
// value brings a sum to scale and takes away zero points.
//
// Eight warps split the inputs: chunk c of a unit belongs to warp c % 8, so a warp quantizes the inputs that it needs
// itself, and nothing waits for other warps but the sum of the eight partial results, which warps take in turns. A
// ninth copies weights to the ring.
//
// Plain loads and stores are of whole lines of a warp: others keep the load and store unit busy so long that the block
// of the launch before, on the same multiprocessor, waits for its shared memory.
#pragma once

#include "quant_gptq/cuda/device/ptx.cuh"
#include "quant_gptq/cuda/w4a16_stream/stream.h"

namespace facet::linear {

inline constexpr int kGemvWarps = 8;
inline constexpr int kGemvConsumers = kGemvWarps * 32;
inline constexpr int kGemvThreads = kGemvConsumers + 32;
inline constexpr int kGemvMaxSlots = 16;
inline constexpr int kGemvDepth = 4;    // units whose partial sums are in flight
inline constexpr int kGemvBarrier = 8;  // named barrier of all warps; 1..kGemvDepth are of the partial sums
inline constexpr int kGemvDigits = 2;
inline constexpr int kGemvNormSums = 5;  // of a row and warp
inline constexpr int kMagicBits = 0x4b400000;
inline constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23

// Digits: two halves of 64 inputs; in each, chunk after chunk, [column: digit * ROWS + row][16 words]. The halves are
// 16 banks apart.
template <int ROWS>
__host__ __device__ constexpr int gemv_half_words() {
  return ROWS * kGemvDigits * 16;
}
template <int ROWS>
__host__ __device__ constexpr int gemv_digit_words(int chunks) {  // of a half
  return chunks * gemv_half_words<ROWS>() + 16;
}
template <int ROWS>
__host__ __device__ constexpr int gemv_pair_bytes(int segments) {
  return ROWS * segments * 16;
}
__host__ __device__ constexpr int gemv_sum_bytes(int rows) {
  return kGemvDepth * kGemvWarps * rows * kUnitRows * 4;
}
template <int ROWS>
__host__ __device__ constexpr int gemv_fixed(int chunks, int segments) {
  return 16 * kGemvMaxSlots + 2 * gemv_digit_words<ROWS>(chunks) * 4 + chunks * gemv_pair_bytes<ROWS>(segments) +
         gemv_sum_bytes(ROWS) + kGemvNormSums * ROWS * kGemvWarps * 4 + 16;
}

// Where things lie in a block's shared memory.
struct GemvMemory {
  std::uint32_t full;   // barriers of slots that are filled
  std::uint32_t empty;  // and of those that are read
  unsigned char* ring;
  std::uint32_t* digits;
  float4* pairs;  // [chunk][segment][ROWS]: step and step * sum of two columns
  float* sums;
  float* squares;
  float* factor;  // of all scales
  int half;       // words from the first half of the digits to the second
};

template <int ROWS>
__device__ __forceinline__ GemvMemory gemv_memory(unsigned char* base, const StreamArgs& a) {
  GemvMemory m;
  m.full = shared_address(base);
  m.empty = m.full + 8 * kGemvMaxSlots;
  m.ring = base + 16 * kGemvMaxSlots;
  m.half = gemv_digit_words<ROWS>(a.shape.chunks);
  unsigned char* at = m.ring + a.slots * kGemvWarps * a.shape.chunk_bytes;
  m.digits = reinterpret_cast<std::uint32_t*>(at);
  at += 2 * m.half * 4;
  m.pairs = reinterpret_cast<float4*>(at);
  at += a.shape.chunks * gemv_pair_bytes<ROWS>(a.shape.segments);
  m.sums = reinterpret_cast<float*>(at);
  m.squares = m.sums + gemv_sum_bytes(ROWS) / 4;
  m.factor = m.squares + kGemvNormSums * ROWS * kGemvWarps;
  return m;
}

}  // namespace facet::linear
