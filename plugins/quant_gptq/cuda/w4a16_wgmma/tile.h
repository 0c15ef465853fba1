// How a product is cut, and what the plugin hands to its kernels.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "quant_gptq/cuda/rows32/layout.h"

namespace facet::linear {

inline constexpr int kMostSplits = 8;  // blocks of a cluster that every device of this kind can place

// `columns` rows of x by the rows of W of `groups` multiplying warpgroups, `blocks` times 64 each.
struct TileForm {
  int columns;
  int blocks;
  int groups;
  friend constexpr bool operator==(const TileForm&, const TileForm&) = default;
};

// A cluster of `splits` blocks takes tiles of one form, each of them its share of the inputs.
struct TileChoice {
  TileForm form;  // one of kTileForms
  int splits;     // 1 to kMostSplits
  int column_tiles;
  int tiles;
  int grid;          // blocks; a multiple of splits
  int stages;        // of the ring
  int stage_chunks;  // of a stage
  int shared_bytes;
};

struct TileDevice {
  int multiprocessors;
  int clusters[kMostSplits + 1];  // that run at a time, by their number of blocks
};

// The fastest cut of `rows` rows, as the cost model in choose.cpp has it.
TileChoice choose_tile(const Rows32& shape, int rows, const TileDevice& device);

struct WgmmaArgs {
  Rows32 shape;
  const unsigned char* packed;
  const void* x;  // bf16
  long long x_stride;
  void* y;
  long long y_stride;
  int rows;
  int output_f32;
  int fuse_gate;
  int tensor;  // x is described by the tensor map; else its rows are not aligned and are copied by loads
  int stages;
  int stage_chunks;
  int splits;
  int column_tiles;
  int tiles;  // of W and x together; x runs fastest, so that W is read once
};

// Allows the kernels for this shape as much shared memory as a block may have; once a process and device.
cudaError_t wgmma_prepare(const Rows32& shape);
// Clusters of `splits` blocks that the current device runs at a time; after wgmma_prepare(). Fewer than its
// multiprocessors would make, as a cluster stays within a group of them; none of a size that the device refuses.
int wgmma_clusters(const Rows32& shape, int splits);
// `dependent`: may start before its predecessor ends.
cudaError_t wgmma_launch(const WgmmaArgs& args, const TileChoice& choice, const CUtensorMap& map, bool dependent,
                         cudaStream_t stream);

}  // namespace facet::linear
