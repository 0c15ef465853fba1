// The kernels of split.cuh, for 2 to 4 rows without a norm, and how a product is cut for them.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/stream.h"

namespace facet::linear {

inline constexpr int kSplitRows = 4;
inline constexpr int kMostSplits = 8;  // blocks of a cluster that every device of this kind can place
inline constexpr int kSplitDepth = 2;
inline constexpr int kSplitMinSlots = 2;
// More than a block's 576 threads: two blocks then leave registers for a small kernel beside them.
inline constexpr int kSplitBound = 640;

// What a device can hold.
struct SplitDevice {
  int multiprocessors;
  int shared_per_multiprocessor;
  int shared_per_block;
  int clusters[kMostSplits + 1];  // that run at a time, by their number of blocks, one block a multiprocessor
};

// Whether a block has room for the inputs of `rows` rows.
bool split_fits(const Rows32& shape, int rows, int shared_per_block);
// Fills in how args.rows rows are cut, all but the ring. Returns the number of blocks to launch.
int split_cut(StreamArgs& args, const SplitDevice& device);
// Makes the ring in at most `shared` bytes of shared memory; returns what a block takes, 0 when it does not fit.
int split_ring(StreamArgs& args, int shared);

// Shared memory of a block beside the ring.
int split_fixed_bytes(const StreamArgs& args);
int split_max_slots();

// Allows the kernels for these shapes as much shared memory as a block may have; once a process and device.
cudaError_t split_prepare(const Rows32& shape);
// Clusters of `splits` blocks that run at a time, one block a multiprocessor; after split_prepare().
int split_clusters(const Rows32& shape, int splits, int shared_per_block);
cudaError_t split_launch(const StreamArgs& args, int grid, int shared_bytes, bool dependent, cudaStream_t stream);

}  // namespace facet::linear
