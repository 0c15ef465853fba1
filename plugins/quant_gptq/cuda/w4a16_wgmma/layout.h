// Sizes of a tile that the choice on the host and the kernel share.
#pragma once

#include "quant_gptq/cuda/w4a16_wgmma/tile.h"

namespace facet::linear {

inline constexpr int kSharedPerBlock = 227 << 10;  // compute capability 9.0
inline constexpr int kMaxStages = 16;
inline constexpr int kColumnBytes = 2 * kChunkInputs;  // of a row of x in a chunk
inline constexpr int kRingAlignment = 1024;            // of the swizzle of x
inline constexpr int kBarrierBytes = 2 * 8 * kMaxStages;

// Tiles that have a kernel. Four warpgroups hide more of each other's waits, up to 48 columns; at 64 two of them, with
// registers for two blocks each, take no longer.
inline constexpr TileForm kTileForms[] = {{8, 1, 4},               //
                                          {16, 1, 4}, {16, 1, 2},  //
                                          {32, 1, 4}, {32, 1, 2},  //
                                          {48, 1, 4},              //
                                          {64, 2, 2}, {64, 1, 2},  //
                                          {96, 2, 2}, {128, 1, 2}, {128, 2, 2}};

constexpr int tile_units(const TileForm& form) {
  return 2 * form.groups * form.blocks;
}
// Of a block, with the copying warps.
constexpr int tile_threads(const TileForm& form) {
  return 128 * (form.groups + 1);
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
constexpr int tile_slice_floats(const TileForm& form) {
  return tile_slice_columns(form.columns) * tile_slice_stride(form.blocks);
}

// Sums of a block of a cluster: all rows of W of a column side by side.
constexpr int tile_partial_stride(const TileForm& form) {
  return kUnitRows * tile_units(form) + 4;
}
constexpr int tile_partial_bytes(const TileForm& form) {
  return form.columns * tile_partial_stride(form) * 4;
}

// Shared memory beside the ring.
constexpr int tile_fixed_bytes(const TileForm& form) {
  return kRingAlignment + form.groups * tile_slice_buffers(form.columns) * tile_slice_floats(form) * 4 + kBarrierBytes;
}

}  // namespace facet::linear
