// What a block of kernel.cuh is: its tile, its shared memory, its way through the product.
#pragma once

#include "quant_gptq/cuda/device/ptx.cuh"
#include "quant_gptq/cuda/w4a16_wgmma/layout.h"

namespace facet::linear {

template <int COLUMNS, int BLOCKS, int GROUPS>
struct Tile {
  static constexpr TileForm kForm{COLUMNS, BLOCKS, GROUPS};
  static constexpr int kColumns = COLUMNS;
  static constexpr int kBlocks = BLOCKS;  // of 64 rows of W, of a warpgroup
  static constexpr int kGroups = GROUPS;
  static constexpr int kUnits = tile_units(kForm);
  static constexpr int kConsumers = GROUPS * 128;
  static constexpr int kThreads = tile_threads(kForm);
  static constexpr int kPanelBytes = COLUMNS * 128;    // 64 inputs of x
  static constexpr int kChunkBytes = 2 * kPanelBytes;  // of x
  static constexpr int kSums = COLUMNS / 2;            // of a thread and block of 64 rows
  static constexpr int kSliceColumns = tile_slice_columns(COLUMNS);
  static constexpr int kSliceBuffers = tile_slice_buffers(COLUMNS);
  static constexpr int kSliceStride = tile_slice_stride(BLOCKS);
  static constexpr int kSliceFloats = tile_slice_floats(kForm);
  static constexpr int kPartialStride = tile_partial_stride(kForm);
  // Blocks multiplied at a time: sums of a segment take as many registers as those of all.
  static constexpr int kTogether = BLOCKS * COLUMNS <= 128 ? BLOCKS : 1;
  // Registers of a thread, from the 168 or 96 that all have at the launch to what its part takes.
  static constexpr int kCopyRegisters = GROUPS == 4 ? 32 : COLUMNS >= 96 ? 24 : 40;
  static constexpr int kMultiplyRegisters = GROUPS == 4 ? 112 : COLUMNS >= 96 ? 240 : 232;
};

// Shared memory: the ring of x, the ring of W, slices of sums for each warpgroup, barriers.
template <typename T>
struct TileMemory {
  unsigned char* x;
  unsigned char* w;
  float* slices;
  std::uint32_t full;
  std::uint32_t empty;
  int unit_bytes;  // of a stage

  __device__ __forceinline__ TileMemory(unsigned char* base, const WgmmaArgs& a) {
    base += (1024 - (shared_address(base) & 1023)) & 1023;
    unit_bytes = a.stage_chunks * a.shape.chunk_bytes;
    x = base;
    w = x + a.stages * a.stage_chunks * T::kChunkBytes;
    slices = reinterpret_cast<float*>(w + a.stages * T::kUnits * unit_bytes);
    full = shared_address(slices + T::kGroups * T::kSliceBuffers * T::kSliceFloats);
    empty = full + 8 * kMaxStages;
  }
};

// A block's share of the inputs and its way through the tiles.
struct TileWalk {
  int first_chunk;
  int chunks;
  int first;
  int step;
  int rank;

  __device__ __forceinline__ explicit TileWalk(const WgmmaArgs& a) {
    rank = static_cast<int>(blockIdx.x) % a.splits;
    first = static_cast<int>(blockIdx.x) / a.splits;
    step = static_cast<int>(gridDim.x) / a.splits;
    first_chunk = a.shape.chunks * rank / a.splits;
    chunks = a.shape.chunks * (rank + 1) / a.splits - first_chunk;
  }
};

}  // namespace facet::linear
