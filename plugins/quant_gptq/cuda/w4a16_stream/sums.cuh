// Sums of warps to sums of blocks of a cluster, those to outputs: what one warp of split.cuh does.
#pragma once

#include "quant_gptq/cuda/device/ptx.cuh"
#include "quant_gptq/cuda/w4a16_stream/split.h"

namespace facet::linear {

inline constexpr int kSumBarriers = 2 + kSplitDepth * (1 + kMostSplits);

// A block's share of the work.
struct SplitShare {
  int rank;  // in the cluster
  int cluster;
  int units;        // of the cluster
  int first_chunk;  // of every unit
  int chunks;

  __device__ __forceinline__ SplitShare(const StreamArgs& a)
      : rank(static_cast<int>(blockIdx.x) % a.splits),
        cluster(static_cast<int>(blockIdx.x) / a.splits),
        units((a.shape.units - cluster + a.clusters - 1) / a.clusters),
        first_chunk(rank * a.block_chunks),
        chunks(min(a.block_chunks, a.shape.chunks - first_chunk)) {}
};

struct SumMemory {
  std::uint32_t summed;  // barrier: the sums of a unit lie ready
  std::uint32_t taken;   // and are read
  std::uint32_t sent;    // of slots of `cluster`: all blocks have sent
  std::uint32_t free;    // of the same slots at each other block: the owner has read
  float* parts;          // [part][row][kUnitRows]
  float* cluster;        // [depth][split][row][kUnitRows]

  __device__ __forceinline__ void place(std::uint32_t barriers) {
    summed = barriers;
    taken = summed + 8;
    sent = taken + 8;
    free = sent + 8 * kSplitDepth;
  }
};

// Adds `parts` arrays of sums. A lane holds features 4 (lane % 8) .. + 3 of rows lane / 8 + 4 i.
template <int ROWS>
class SumFinisher {
 public:
  __device__ __forceinline__ SumFinisher(const StreamArgs& a, const SumMemory& m, int parts, int lane)
      : a_(a), m_(m), share_(a), parts_(parts), lane_(lane) {}

  // By one thread, before the cluster's barrier.
  __device__ __forceinline__ static void init(const StreamArgs& a, const SumMemory& m, int writers) {
    barrier_init(m.summed, writers);
    barrier_init(m.taken, 1);
    for (int slot = 0; slot < kSplitDepth; ++slot) barrier_init(m.sent + 8 * slot, 1);
    for (int i = 0; i < kSplitDepth * kMostSplits; ++i) barrier_init(m.free + 8 * i, 1);
    barrier_init_fence();
    if (a.splits == 1) return;
    for (int slot = 0; slot < a.depth; ++slot) barrier_expect(m.sent + 8 * slot, sent_bytes(a));
  }

  __device__ __forceinline__ void run() {
    const int owned = (share_.units - share_.rank + a_.splits - 1) / a_.splits;
    factor_ = *reinterpret_cast<const float*>(a_.packed);
    int added = 0;     // units of the cluster
    int finished = 0;  // units of this block
    int owner = 0;     // of the next unit, and which of its units that is
    int use = 0;
#pragma unroll 1
    while (true) {
      Sums sums;
      int unit;
      // Own units a round later, when the others have most likely sent theirs. No block waits for a later unit than
      // another: all go on.
      const bool due = a_.splits > 1 && finished < owned &&
                       (added == share_.units || (finished + 1) * a_.splits + share_.rank < added);
      if (due) {
        unit = finished * a_.splits + share_.rank;
        receive(finished++, owned, sums);
      } else if (added < share_.units) {
        unit = added++;
        collect(sums);
        if (a_.splits > 1) {
          send(sums, owner, use);
          if (++owner == a_.splits) {
            owner = 0;
            ++use;
          }
          continue;
        }
      } else {
        return;
      }
      write(sums, unit);
    }
  }

 private:
  static constexpr int kItems = (ROWS + 3) / 4;
  struct Sums {
    float4 item[kItems];
  };
  __device__ __forceinline__ static int sent_bytes(const StreamArgs& a) {
    return a.splits * ROWS * kUnitRows * 4;
  }
  // Lanes without a row follow those of the last.
  __device__ __forceinline__ int row() const {
    return min(lane_ >> 3, ROWS - 1);
  }

  template <int COUNT>
  __device__ __forceinline__ void add(const float* at, Sums& sums) const {
    float4 part[COUNT][kItems];
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
#pragma unroll
      for (int i = 0; i < kItems; ++i)
        part[k][i] = *reinterpret_cast<const float4*>(at + k * ROWS * kUnitRows + 4 * i * kUnitRows);
    }
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        sums.item[i].x += part[k][i].x;
        sums.item[i].y += part[k][i].y;
        sums.item[i].z += part[k][i].z;
        sums.item[i].w += part[k][i].w;
      }
    }
  }
  // The sum of `count` arrays [ROWS][kUnitRows], one after the other.
  __device__ __forceinline__ void add_all(const float* from, int count, Sums& sums) const {
    const float* at = from + row() * kUnitRows + (lane_ & 7) * 4;
#pragma unroll
    for (int i = 0; i < kItems; ++i) sums.item[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    constexpr int kTogether = 4;
#pragma unroll 1
    for (; count >= kTogether; count -= kTogether) {
      add<kTogether>(at, sums);
      at += kTogether * ROWS * kUnitRows;
    }
#pragma unroll 1
    for (; count > 0; --count) {
      add<1>(at, sums);
      at += ROWS * kUnitRows;
    }
  }

  // The sums of the block's next unit.
  __device__ __forceinline__ void collect(Sums& sums) {
    barrier_wait(m_.summed, parity_);
    parity_ ^= 1;
    add_all(m_.parts, parts_, sums);
    __syncwarp();
    if (lane_ == 0) barrier_arrive(m_.taken);
  }

  // This block's sums of a unit, number `use` of block `owner`, to that.
  __device__ __forceinline__ void send(const Sums& sums, int owner, int use) const {
    const int slot = use & (a_.depth - 1);
    if (use >= a_.depth) {
      barrier_wait_cluster(m_.free + 8 * (owner * kSplitDepth + slot), (use / kSplitDepth - 1) & 1);
      // No lane sends before all have seen this phase: of two rows half of them send all there is, and one of the
      // others that came two phases late would wait for the phase after.
      __syncwarp();
    }
    const float* target = m_.cluster + (slot * a_.splits + share_.rank) * ROWS * kUnitRows + lane_ * 4;
    const std::uint32_t address = cluster_address(shared_address(target), owner);
    const std::uint32_t barrier = cluster_address(m_.sent + 8 * slot, owner);
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (ROWS >= 4 || lane_ < ROWS * 8) store_async(address + k * 32 * 16, sums.item[k], barrier);
    }
  }

  // Own unit `use` when all blocks have sent it.
  __device__ __forceinline__ void receive(int use, int owned, Sums& sums) const {
    const int slot = use & (a_.depth - 1);
    const std::uint32_t barrier = m_.sent + 8 * slot;
    barrier_wait_cluster(barrier, (use / kSplitDepth) & 1);
    add_all(m_.cluster + slot * a_.splits * ROWS * kUnitRows, a_.splits, sums);
    __syncwarp();
    if (use + a_.depth >= owned) return;
    if (lane_ == 0) barrier_expect(barrier, sent_bytes(a_));
    __syncwarp();
    if (lane_ < a_.splits)
      barrier_arrive_remote(cluster_address(m_.free + 8 * (share_.rank * kSplitDepth + slot), lane_));
  }

  __device__ __forceinline__ void write(const Sums& sums, int i) const {
    const long long unit = share_.cluster + static_cast<long long>(i) * a_.clusters;
    const int outputs = static_cast<int>(a_.shape.out_features);
    const int f = (lane_ & 7) * 4;
    int column = static_cast<int>(unit) * kUnitRows + f;
    int limit = outputs;
    if (a_.shape.gate != 0) {
      const int half = outputs / 2;
      column = static_cast<int>(unit) * 16 + (f & 15);
      limit = half;
      if (f >= 16 && a_.fuse_gate == 0) {
        column += half;
        limit = outputs;
      }
    }
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      float4 v = sums.item[k];
      v.x *= factor_;
      v.y *= factor_;
      v.z *= factor_;
      v.w *= factor_;
      if (a_.fuse_gate != 0) {
        v.x = gelu_tanh(v.x) * __shfl_down_sync(~0u, v.x, 4);
        v.y = gelu_tanh(v.y) * __shfl_down_sync(~0u, v.y, 4);
        v.z = gelu_tanh(v.z) * __shfl_down_sync(~0u, v.z, 4);
        v.w = gelu_tanh(v.w) * __shfl_down_sync(~0u, v.w, 4);
      }
      const int row = (lane_ >> 3) + 4 * k;
      if (row >= a_.rows || (a_.fuse_gate != 0 && f >= 16)) continue;
      store4(static_cast<long long>(row) * a_.y_stride, column, limit, v);
    }
  }

  __device__ __forceinline__ void store4(long long row, int column, int limit, const float4& v) const {
    if (a_.output_f32 != 0) {
      float* y = static_cast<float*>(a_.y) + row + column;
      if (column + 4 <= limit && (reinterpret_cast<unsigned long long>(y) & 15) == 0) {
        *reinterpret_cast<float4*>(y) = v;
        return;
      }
      const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (column + e < limit) y[e] = values[e];
      return;
    }
    auto* y = static_cast<__nv_bfloat16*>(a_.y) + row + column;
    const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
    if (column + 4 <= limit && (reinterpret_cast<unsigned long long>(y) & 7) == 0) {
      *reinterpret_cast<uint2*>(y) = *reinterpret_cast<const uint2*>(pairs);
      return;
    }
    const __nv_bfloat16 values[4] = {pairs[0].x, pairs[0].y, pairs[1].x, pairs[1].y};
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (column + e < limit) y[e] = values[e];
  }

  const StreamArgs& a_;
  const SumMemory& m_;
  const SplitShare share_;
  const int parts_;
  const int lane_;
  float factor_;
  std::uint32_t parity_ = 0;
};

}  // namespace facet::linear
