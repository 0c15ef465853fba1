// The kernels of wide.cuh, for 5 to 8 rows, and how a product is cut for them.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "quant_gptq/cuda/rows32/layout.h"
#include "quant_gptq/cuda/w4a16_stream/norm_blocks.h"
#include "quant_gptq/cuda/w4a16_stream/stream.h"

namespace facet::linear {

inline constexpr int kWideRows = 8;
inline constexpr int kWideMostSplits = 4;  // blocks of a cluster
inline constexpr int kWideGroups = 2;      // multiplying warpgroups
inline constexpr int kWideConsumers = 128 * kWideGroups;
inline constexpr int kWideCutWarps = 6;
inline constexpr int kWideCopyWarps = 2;  // of weights, of inputs
inline constexpr int kWideThreads = kWideConsumers + 32 * (kWideCutWarps + kWideCopyWarps);
inline constexpr int kWideStageChunks = 8;  // of a unit, in a stage of the ring
inline constexpr int kWideMaxStages = 12;
inline constexpr int kWideMinStages = 2;
inline constexpr int kWideAlignment = 1024;  // of the swizzle of the digits
inline constexpr int kWideBarrierBytes = 512;
inline constexpr int kWideChunkDigitBytes = 2 * kWideRows * kChunkInputs;
inline constexpr int kWidePairBytes = kWideRows * 8;       // of a segment of a chunk: two floats
inline constexpr int kWideSumBytes = kWideRows * 128 * 4;  // of a tile: 128 rows of W, or twice 64

struct WideArgs {
  Rows32 shape;
  const unsigned char* packed;
  const void* x;  // bf16
  long long x_stride;
  void* y;
  long long y_stride;
  // Of inputs that blocks of the launch make, in the workspace, see wide_workspace_bytes().
  unsigned char* digits;
  unsigned char* pairs;
  int rows;
  int tensor;  // x is described by the tensor map; else the warps that cut it read it themselves
  int output_f32;
  int fuse_gate;
  int k_shift;       // 1: both warpgroups share the inputs of a tile of 64 rows of W; 0: each takes 64 rows of 128
  int split_shift;   // 2^split_shift blocks of a cluster share the inputs too
  int block_chunks;  // of the inputs that a block takes; the last of a cluster may have fewer
  int tiles;
  int sum_buffers;  // tiles whose sums may be under way
  int clusters;     // each takes every clusters-th tile
  int stages;       // of the ring
  StreamResidual residual;
  NormBlocks norm;
};

// Digits that blocks of the launch make for the others, [chunk][digit, row of x][128 inputs], and after them what they
// are worth, [chunk]. Stages are copied whole, so there are some more chunks.
inline constexpr int kWideMoreChunks = 3;
constexpr std::int64_t wide_pairs_offset(const Rows32& shape) {
  return static_cast<std::int64_t>(shape.chunks + kWideMoreChunks) * kWideChunkDigitBytes;
}
constexpr std::int64_t wide_workspace_bytes(const Rows32& shape) {
  return wide_pairs_offset(shape) +
         static_cast<std::int64_t>(shape.chunks + kWideMoreChunks) * shape.segments * kWidePairBytes;
}

struct WideDevice {
  int multiprocessors;
  int clusters[kWideMostSplits + 1];  // that run at a time, by their number of blocks
};

// Fills in how args.rows rows are cut, all but the ring; args.norm says how many blocks make inputs. Returns the number
// of blocks to launch, those included.
int wide_cut(WideArgs& args, const WideDevice& device);
// Of the ring: weights, digits and what they are worth.
constexpr int wide_stage_bytes(const WideArgs& args) {
  return kWideStageChunks * args.shape.chunk_bytes +
         (2 << args.k_shift) * (kWideChunkDigitBytes + args.shape.segments * kWidePairBytes);
}
// Makes the ring in at most `shared` bytes of shared memory; returns what a block takes, 0 when it does not fit.
int wide_ring(WideArgs& args, int shared);

// Allows the kernels for these shapes as much shared memory as a block may have; once a process and device.
cudaError_t wide_prepare(const Rows32& shape);
// Clusters of `splits` blocks that run at a time, one block a multiprocessor; after wide_prepare().
int wide_clusters(const Rows32& shape, int splits, int shared_per_block);
cudaError_t wide_launch(const WideArgs& args, const CUtensorMap& map, int grid, int shared_bytes, bool dependent,
                        cudaStream_t stream);

}  // namespace facet::linear
