// The kernel of rows.cuh; each number of activation tiles is compiled in a file of its own.
#pragma once

#include <cooperative_groups.h>

#include "quant_gptq/cuda/w4a16_stream/rows.cuh"

namespace facet::linear {

// One thread copies stages: the weights of the first ring at once, activations when they are there.
__device__ __forceinline__ void rows_produce(const RowsArgs& a, int first_unit, int units, int first_chunk, int chunks,
                                             unsigned char* ring, std::uint32_t full) {
  const Rows32& shape = a.stream.shape;
  const std::uint64_t policy = evict_first_policy();
  const int unit_bytes = shape.chunks * shape.chunk_bytes;
  const int weight_bytes = kRowsWarps * shape.chunk_bytes;
  const int x_bytes = a.tiles * kOperandBytes;
  const int stage_bytes = weight_bytes + x_bytes;
  const std::uint32_t empty = full + 8 * kRowsMaxStages;
  const unsigned char* source = a.stream.packed + kHeaderBytes + static_cast<long long>(first_unit) * unit_bytes +
                                static_cast<long long>(first_chunk) * shape.chunk_bytes;
  const unsigned char* x = a.operands + static_cast<long long>(first_chunk) * x_bytes;
  const auto weights = [&](int chunk, int stage) {
    barrier_expect(full + 8 * stage, units * shape.chunk_bytes + x_bytes);
    for (int unit = 0; unit < units; ++unit)
      bulk_copy(shared_address(ring + stage * stage_bytes + unit * shape.chunk_bytes),
                source + static_cast<long long>(unit) * unit_bytes + static_cast<long long>(chunk) * shape.chunk_bytes,
                shape.chunk_bytes, full + 8 * stage, policy);
  };
  const auto activations = [&](int chunk, int stage) {
    bulk_copy_plain(shared_address(ring + stage * stage_bytes + weight_bytes),
                    x + static_cast<long long>(chunk) * x_bytes, x_bytes, full + 8 * stage);
  };
  const int ahead = min(chunks, a.stages);
  for (int chunk = 0; chunk < ahead; ++chunk) weights(chunk, chunk);
  wait_for_inputs();
  asm volatile("fence.proxy.async;" ::: "memory");  // ordinary stores of the launch before, read by the copy engine
  for (int chunk = 0; chunk < ahead; ++chunk) activations(chunk, chunk);
  int stage = 0;
  std::uint32_t parity = 0;
  for (int chunk = ahead; chunk < chunks; ++chunk) {
    barrier_wait(empty + 8 * stage, parity);
    weights(chunk, stage);
    activations(chunk, stage);
    if (++stage == a.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// Adds the sums of the cluster's blocks for this block's share of the units and writes the outputs.
__device__ __forceinline__ void rows_finish(const RowsArgs& a, const float* sums, int first_unit, int units) {
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  const StreamArgs& s = a.stream;
  const int splits = static_cast<int>(cluster.num_blocks());
  const int outputs = static_cast<int>(s.shape.out_features);
  const int half = outputs / 2;
  const float factor = *reinterpret_cast<const float*>(s.packed);
  const int lane = threadIdx.x % 32;
  // A warp takes one unit of one activation row at a time.
  const int items = units * s.rows;
  for (int item = static_cast<int>(cluster.block_rank()) + splits * (threadIdx.x / 32); item < items;
       item += splits * kRowsWarps) {
    const int unit = item % units;
    const int row = item / units;
    float sum = 0.0f;
    for (int split = 0; split < splits; ++split)
      sum += cluster.map_shared_rank(sums, split)[row * kSumStride + unit * kUnitRows + lane];
    sum *= factor;
    int column = (first_unit + unit) * kUnitRows + lane;
    bool valid = column < outputs;
    if (s.shape.gate != 0) {
      const int inside = (first_unit + unit) * 16 + (lane & 15);
      valid = inside < half;
      column = lane < 16 ? inside : half + inside;
    }
    if (s.fuse_gate != 0) {
      const float up = __shfl_down_sync(~0u, sum, 16);
      sum = gelu_tanh(sum) * up;
      valid = valid && lane < 16;
    }
    if (!valid) continue;
    const long long at = static_cast<long long>(row) * s.y_stride + column;
    if (s.output_f32 != 0) {
      static_cast<float*>(s.y)[at] = sum;
    } else {
      static_cast<__nv_bfloat16*>(s.y)[at] = __float2bfloat16_rn(sum);
    }
  }
}

template <int BITS, int SEGMENTS, bool ASYMMETRIC, int TILES>
__global__ void __launch_bounds__(kRowsThreads, 1) rows_kernel(const __grid_constant__ RowsArgs a) {
  namespace cg = cooperative_groups;
  extern __shared__ __align__(128) unsigned char base[];
  const cg::cluster_group cluster = cg::this_cluster();
  const Rows32& shape = a.stream.shape;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int splits = static_cast<int>(cluster.num_blocks());
  const int rank = static_cast<int>(cluster.block_rank());
  const int first_unit = static_cast<int>(blockIdx.x) / splits * kRowsWarps;
  const int units = min(kRowsWarps, shape.units - first_unit);
  const int first_chunk = shape.chunks * rank / splits;
  const int chunks = shape.chunks * (rank + 1) / splits - first_chunk;
  const std::uint32_t full = shared_address(base);
  const std::uint32_t empty = full + 8 * kRowsMaxStages;
  unsigned char* ring = base + kRowsBarrierBytes;
  const int weight_bytes = kRowsWarps * shape.chunk_bytes;
  const int stage_bytes = weight_bytes + a.tiles * kOperandBytes;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < a.stages; ++stage) {
      barrier_init(full + 8 * stage, 1);
      barrier_init(empty + 8 * stage, kRowsWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (warp == kRowsWarps) {
    if (lane == 0) rows_produce(a, first_unit, units, first_chunk, chunks, ring, full);
    __syncwarp();
  } else {
    wait_for_inputs();
    launch_dependents();
    float acc[2][TILES][4] = {};
    int stage = 0;
    std::uint32_t parity = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      barrier_wait(full + 8 * stage, parity);
      const unsigned char* data = ring + stage * stage_bytes;
      if (warp < units)
        multiply_rows<BITS, SEGMENTS, ASYMMETRIC, TILES>(data + warp * shape.chunk_bytes, data + weight_bytes, lane,
                                                         acc);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * stage);
      if (++stage == a.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    named_sync(1, kRowsWarps * 32);  // the ring is read: its memory takes the sums
    float* sums = reinterpret_cast<float*>(ring);
    const int g = lane >> 2;
    const int t = lane & 3;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int n = 0; n < TILES; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sums[(n * kTileColumns + 2 * t + (e & 1)) * kSumStride + warp * kUnitRows + tile * 16 + (e >> 1) * 8 + g] =
              acc[tile][n][e];
      }
    }
  }
  __syncthreads();
  cluster.sync();
  if (warp < kRowsWarps) rows_finish(a, reinterpret_cast<const float*>(ring), first_unit, units);
  cluster.sync();  // others may still read this block's sums
}

using RowsKernel = void (*)(RowsArgs);

template <int BITS, bool ASYMMETRIC, int TILES>
RowsKernel rows_kernel_of(const Rows32& shape) {
  if (shape.segments == 1) return rows_kernel<BITS, 1, ASYMMETRIC, TILES>;
  if (shape.segments == 2) return rows_kernel<BITS, 2, ASYMMETRIC, TILES>;
  return rows_kernel<BITS, 4, ASYMMETRIC, TILES>;
}

template <int TILES>
RowsKernel rows_kernel_of(const Rows32& shape) {
  if (shape.bits == 8) return rows_kernel_of<8, false, TILES>(shape);
  return shape.asymmetric != 0 ? rows_kernel_of<4, true, TILES>(shape) : rows_kernel_of<4, false, TILES>(shape);
}

RowsKernel rows_kernel_1(const Rows32& shape);
RowsKernel rows_kernel_2(const Rows32& shape);
RowsKernel rows_kernel_4(const Rows32& shape);
RowsKernel rows_kernel_8(const Rows32& shape);

}  // namespace facet::linear
