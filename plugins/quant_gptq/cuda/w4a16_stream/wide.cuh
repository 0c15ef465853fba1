// 5 to 8 rows: digits as in gemv.cuh, multiplied by warpgroups.
//
// The product is turned around: 64 rows of W are the rows of an integer wgmma, whose operand a warp makes of codes with
// masks; its columns are the high digits of all rows of x, then the low ones, in shared memory. Six warps cut x into
// digits, some chunks ahead of two multiplying warpgroups, so that it takes a block no time of its own once the first
// are cut; one more warp copies weights, one x. Digits have 15 bits here, not 16, so that the largest fits without a
// test.
//
// A tile is 128 rows of W, 64 for each warpgroup, or 64 of which each multiplies half of the inputs; the blocks of a
// cluster may share the inputs too. Sums go to the block that owns their rows, in its shared memory, and are added
// there in order.
#pragma once

#include "quant_gptq/cuda/device/ptx.cuh"
#include "quant_gptq/cuda/device/wgmma.cuh"
#include "quant_gptq/cuda/w4a16_stream/norm_blocks.cuh"
#include "quant_gptq/cuda/w4a16_stream/wide.h"

namespace facet::linear {

// Registers of a thread: 64 at the launch, as two blocks share a multiprocessor, then by the part of its warpgroup.
inline constexpr int kWideMultiplyRegisters = 88;
inline constexpr int kWideOtherRegisters = 40;
static_assert(kWideThreads == 2 * kWideConsumers);

// A block's share of the inputs and its way through the tiles.
struct WideWalk {
  int rank;
  int first;  // tile
  int first_chunk;
  int chunks;
  int stage_shift;  // 2^stage_shift chunks of a unit are a stage
  int stages;       // of a tile
  int units;        // of a tile

  __device__ __forceinline__ explicit WideWalk(const WideArgs& a) {
    const int block = product_block(a.norm);
    rank = block & ((1 << a.split_shift) - 1);
    first = block >> a.split_shift;
    first_chunk = rank * a.block_chunks;
    chunks = min(a.block_chunks, a.shape.chunks - first_chunk);
    stage_shift = 1 + a.k_shift;
    stages = (chunks + (1 << stage_shift) - 1) >> stage_shift;
    units = 4 >> a.k_shift;
  }
  __device__ __forceinline__ int stage_chunks() const { return 1 << stage_shift; }
};

// Where things lie in a block's shared memory: a ring of stages, of each its digits, its weights and what its digits
// are worth.
struct WideMemory {
  // [stage][chunk][digit, row of x][128 inputs] in the 128-byte swizzle. Before they are cut, inputs lie in the same
  // place: 64 of them where the high digits of a row will be, 64 where the low ones will be.
  unsigned char* digits;
  unsigned char* weights;  // [stage][unit][chunk]
  unsigned char* pairs;    // [stage][chunk][step, sum][segment][row of x]
  float* sums;             // [sum_buffers][block and warpgroup][row of W][row of x]
  std::uint32_t barriers;

  __device__ __forceinline__ WideMemory(unsigned char* base, const WideArgs& a) {
    base += (kWideAlignment - (shared_address(base) & (kWideAlignment - 1))) & (kWideAlignment - 1);
    const int chunks = a.stages * (2 << a.k_shift);
    digits = base;
    weights = digits + chunks * kWideChunkDigitBytes;
    pairs = weights + a.stages * kWideStageChunks * a.shape.chunk_bytes;
    sums = reinterpret_cast<float*>(pairs + chunks * a.shape.segments * kWidePairBytes);
    barriers = shared_address(sums) + a.sum_buffers * kWideSumBytes;
    static_assert(8 * (3 * kWideMaxStages + 1) <= kWideBarrierBytes);
  }
  // Of a stage: weights and digits are there, inputs are there, all have been multiplied.
  static constexpr std::uint32_t kRaw = 8 * kWideMaxStages, kEmpty = 2 * kRaw;  // from full() on
  __device__ __forceinline__ std::uint32_t full(int stage) const { return barriers + 8 * stage; }
  __device__ __forceinline__ std::uint32_t raw(int stage) const { return full(stage) + kRaw; }
  __device__ __forceinline__ std::uint32_t empty(int stage) const { return full(stage) + kEmpty; }
  __device__ __forceinline__ std::uint32_t summed() const { return barriers + 3 * kRaw; }
};

// A stage of the ring and how often it came round.
struct WideSlot {
  int at = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++at < stages) return;
    at = 0;
    parity ^= 1;
  }
};

}  // namespace facet::linear
