// 2 to 4 rows without a norm: digits as in gemv.cuh, but the blocks of a cluster may share the inputs. A block then has
// fewer activations to cut into digits, and more units to use them for.
//
// Sixteen warps multiply, two to a chunk, one for each of its tiles; they share the work of making digits. A warp puts
// its sums of a unit to shared memory, a finishing warp does the rest (sums.cuh). One more warp copies weights.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/gemv.cuh"
#include "quant_gptq/cuda/w4a16_stream/sums.cuh"

namespace facet::linear {

inline constexpr int kSplitWarps = 2 * kGemvWarps;  // that multiply
inline constexpr int kSplitCopyWarp = kSplitWarps;
inline constexpr int kSplitFinishWarp = kSplitWarps + 1;
inline constexpr int kSplitThreads = (kSplitFinishWarp + 1) * 32;
inline constexpr int kSplitBarrierBytes = 512;
inline constexpr int kSplitBarrier = 1;  // named, of the warps that multiply

template <int ROWS>
__host__ __device__ constexpr int split_input_bytes(int chunks, int segments) {
  return 2 * gemv_digit_words<ROWS>(chunks) * 4 + chunks * gemv_pair_bytes<ROWS>(segments);
}

// Where things lie in a block's shared memory.
template <int ROWS>
struct SplitMemory {
  GemvMemory gemv;
  SumMemory sum;

  __device__ __forceinline__ SplitMemory(unsigned char* base, const StreamArgs& a) : gemv{} {
    gemv.full = shared_address(base);
    gemv.empty = gemv.full + 8 * kGemvMaxSlots;
    sum.place(gemv.empty + 8 * kGemvMaxSlots);
    static_assert(8 * (2 * kGemvMaxSlots + kSumBarriers) <= kSplitBarrierBytes);
    gemv.ring = base + kSplitBarrierBytes;
    gemv.half = gemv_digit_words<ROWS>(a.block_chunks);
    unsigned char* at = gemv.ring + a.slots * kGemvWarps * a.shape.chunk_bytes;
    gemv.digits = reinterpret_cast<std::uint32_t*>(at);
    gemv.pairs = reinterpret_cast<float4*>(at + 2 * gemv.half * 4);
    sum.parts = reinterpret_cast<float*>(at + split_input_bytes<ROWS>(a.block_chunks, a.shape.segments));
    sum.cluster = sum.parts + kGemvWarps * ROWS * kUnitRows;
  }
};

}  // namespace facet::linear
