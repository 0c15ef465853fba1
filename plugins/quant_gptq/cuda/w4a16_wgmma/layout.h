// Sizes of a tile that the choice on the host and the kernel share.
#pragma once

#include "quant_gptq/cuda/w4a16_wgmma/tile.h"

namespace facet::linear {

inline constexpr int kSharedPerBlock = 227 << 10;  // compute capability 9.0
inline constexpr int kMaxStages = 16;
inline constexpr int kColumnBytes = 2 * kChunkInputs;  // of a row of x in a chunk
inline constexpr int kRingAlignment = 1024;            // of the swizzle of x
inline constexpr int kBarrierBytes = 2 * 8 * kMaxStages;
inline constexpr int kTileGroups = 2;  // multiplying warpgroups
inline constexpr int kTileThreads = 128 * (kTileGroups + 1);

// Which tiles have a kernel.
constexpr bool tile_compiled(int columns, int blocks) {
  return blocks == 2 || columns == 16 || columns == 32 || columns == 64 || columns == 128;
}

// Sums on their way to y, by warpgroup: slices of columns, rows of W side by side and 4 floats apart, so that the
// writes of a warp hit different banks.
constexpr int tile_slice_columns(int columns) {
  return columns >= 32 ? 16 : 8;
}
constexpr int tile_slice_buffers(int columns) {
  return columns >= 32 ? 2 : 1;
}
constexpr int tile_slice_stride(int blocks) {
  return 64 * blocks + 4;
}
constexpr int tile_slice_floats(int columns, int blocks) {
  return tile_slice_columns(columns) * tile_slice_stride(blocks);
}

// Sums of a block of a cluster: all rows of W of a column side by side.
constexpr int tile_partial_stride(int blocks) {
  return 64 * kTileGroups * blocks + 4;
}
constexpr int tile_partial_bytes(int columns, int blocks) {
  return columns * tile_partial_stride(blocks) * 4;
}

// Shared memory beside the ring.
constexpr int tile_fixed_bytes(int columns, int blocks) {
  return kRingAlignment + kTileGroups * tile_slice_buffers(columns) * tile_slice_floats(columns, blocks) * 4 +
         kBarrierBytes;
}

}  // namespace facet::linear
