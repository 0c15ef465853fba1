// What the plugin hands to its kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "quant_gptq/cuda/rows32/layout.h"

namespace facet::linear {

// A normalised residual stream as input, see abi::LinearResidual.
struct StreamResidual {
  float epsilon;
  float scale;
  const float* hidden;
  const void* update;  // bf16 or null
  const float* post_norm;
  const float* next_norm;
  float* hidden_out;  // may be null when update is
};

struct StreamArgs {
  Rows32 shape;
  const unsigned char* packed;
  const void* x;  // bf16; unused with a residual
  long long x_stride;
  void* y;
  long long y_stride;
  int rows;
  int output_f32;
  int fuse_gate;
  int slots;                // of the ring, pages of weights
  int blocks;               // that have units; the grid may be larger
  int first_copies;         // pages under way while the ring fills for the first time
  int copies;               // and later
  StreamResidual residual;  // without `hidden` there is none
  // Of split.cuh:
  int splits;        // blocks of a cluster
  int clusters;      // that have units; the grid may be larger
  int block_chunks;  // of a unit that a block takes; the last block of a cluster may have fewer
  int depth;         // units of a block whose sums of the cluster are in flight
};

// The kernels of gemv.cuh.
inline constexpr int kGemvRows = 2;
inline constexpr int kGemvMinSlots = 2;          // of the ring: one fills while another is read
inline constexpr int kGemvMaxNormInputs = 4096;  // of a fused residual norm: a warp keeps its share in registers

// Shared memory of a block beside the ring, and of one slot of it.
int gemv_fixed_bytes(const Rows32& shape, int rows);
int gemv_page_bytes(const Rows32& shape);
// Most slots that the partial sums of a unit allow.
int gemv_max_slots(const Rows32& shape);

// Allows the kernels for these shapes as much shared memory as a block may have; once a process and device.
cudaError_t gemv_prepare(const Rows32& shape, bool norm);
// grid blocks; shared_bytes of dynamic memory. `dependent`: may start before its predecessor ends.
cudaError_t gemv_launch(const StreamArgs& args, int grid, int shared_bytes, bool dependent, cudaStream_t stream);

}  // namespace facet::linear
