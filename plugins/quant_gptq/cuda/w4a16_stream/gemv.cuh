// Up to 4 rows: a block streams units of 32 rows of W through a ring in shared memory.
//
// Activations are exact or nearly so in fixed point: within a segment (the inputs under one scale) every value is
// rounded to a multiple of 2^-21 (1 or 2 rows) or 2^-15 (4 rows) of a power of two at or above the largest, and cut
// into signed 8-bit digits. Each digit of each row is a column of the B operand of mma.m16n8k32, whose A operand takes
// codes as they are: two masks give 8 weights. Sums are exact in int32; they start at the bits of 1.5 * 2^23, so they
// are floats too, and one multiply-add with the digit's value brings a sum to scale and takes away zero points.
//
// Eight warps split the inputs: chunk c of a unit belongs to warp c % 8, so a warp quantizes the inputs that it needs
// itself, and nothing waits for other warps but the sum of the eight partial results, which warps take in turns.
#pragma once

#include "quant_gptq/cuda/device/ptx.cuh"
#include "quant_gptq/cuda/w4a16_stream/stream.h"

namespace facet::linear {

inline constexpr int kGemvWarps = 8;
inline constexpr int kGemvThreads = (kGemvWarps + 1) * 32;
inline constexpr int kGemvConsumers = kGemvWarps * 32;
inline constexpr int kGemvMaxSlots = 16;
inline constexpr int kGemvDepth = 4;    // units whose partial sums are in flight
inline constexpr int kGemvBarrier = 8;  // named barrier of all consumers; 1..kGemvDepth are of the partial sums
static_assert(kGemvMaxNormInputs == kGemvWarps * 4 * kChunkInputs);  // one round
inline constexpr int kGemvZeroBytes = 32;
inline constexpr int kMagicBits = 0x4b400000;
inline constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23

// ROWS: 1, 2 or 4.
template <int ROWS>
struct GemvColumns {
  static constexpr int kDigits = ROWS <= 2 ? 3 : 2;
  static constexpr int kUsed = ROWS * kDigits;       // columns: digit * ROWS + row
  static constexpr int kStored = kUsed + kUsed % 2;  // a lane reads columns in pairs
};

// Words of digits from chunk to chunk; the odd quarter spreads the stores of a round over the banks.
template <int ROWS>
__host__ __device__ constexpr int gemv_chunk_words() {
  return GemvColumns<ROWS>::kUsed * 32 + 8;
}
template <int ROWS>
__host__ __device__ constexpr int gemv_digit_bytes() {
  return gemv_chunk_words<ROWS>() * 4;
}
template <int ROWS>
__host__ __device__ constexpr int gemv_column_bytes(int segments) {
  return GemvColumns<ROWS>::kStored * segments * 16;
}
__host__ __device__ constexpr int gemv_sum_bytes(int rows) {
  return kGemvDepth * kGemvWarps * rows * kUnitRows * 4;
}

// Where things lie in a block's shared memory.
struct GemvMemory {
  std::uint32_t full;   // barriers of slots that are filled
  std::uint32_t empty;  // and of those that are read
  unsigned char* ring;
  std::uint32_t* digits;
  float4* columns;
  float* sums;
  float* squares;
  unsigned char* zeros;  // what lanes without a column read
};

template <int ROWS>
__device__ __forceinline__ GemvMemory gemv_memory(unsigned char* base, const StreamArgs& a) {
  GemvMemory m;
  m.full = shared_address(base);
  m.empty = m.full + 8 * kGemvMaxSlots;
  m.ring = base + 16 * kGemvMaxSlots;
  unsigned char* at = m.ring + a.slots * kGemvWarps * a.shape.chunk_bytes;
  m.digits = reinterpret_cast<std::uint32_t*>(at);
  at += a.shape.chunks * gemv_digit_bytes<ROWS>();
  m.columns = reinterpret_cast<float4*>(at);
  at += a.shape.chunks * gemv_column_bytes<ROWS>(a.shape.segments);
  m.sums = reinterpret_cast<float*>(at);
  m.squares = m.sums + gemv_sum_bytes(ROWS) / 4;
  m.zeros = reinterpret_cast<unsigned char*>(m.squares + 2 * ROWS * kGemvWarps);
  return m;
}

}  // namespace facet::linear
