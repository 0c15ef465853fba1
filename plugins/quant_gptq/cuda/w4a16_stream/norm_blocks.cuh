// Normalised inputs made by the first blocks of a launch, for its other blocks to read, see abi::LinearResidual.
//
// A norm in a launch of its own ends one launch more before the product, and needs a free place on a multiprocessor
// while blocks of two launches of products fill them all. These blocks are there when the launch before ends, like the
// blocks that multiply, and their first copies of weights go on. Rows that are ready are counted in device memory.
//
// The first blocks of a grid find their places first, and no launch after this one begins before all of its blocks
// have theirs, so blocks that wait never keep out those that they wait for.
#pragma once

#include "quant_gptq/cuda/device/counter.cuh"
#include "quant_gptq/cuda/w4a16_stream/gemv_inputs.cuh"
#include "quant_gptq/cuda/w4a16_stream/norm_blocks.h"

namespace facet::linear {

// Number of a block among those that multiply; negative: it makes inputs.
__device__ __forceinline__ int product_block(const NormBlocks& norm) {
  return static_cast<int>(blockIdx.x) - norm.count;
}

// By one thread of each block that multiplies, after the launch before has ended: returns when all rows are ready.
__device__ __forceinline__ void await_rows(const NormBlocks& norm, int rows) {
  if (norm.count == 0) return;
  while (counter_read(norm.counters) != static_cast<unsigned>(rows)) {
  }
}
// Later, by the same thread of each of `blocks` blocks: the last leaves the counters at zero.
__device__ __forceinline__ void leave_rows(const NormBlocks& norm, int blocks) {
  if (norm.count == 0) return;
  if (counter_next(norm.counters + 1) + 1 != static_cast<unsigned>(blocks)) return;
  norm.counters[0] = 0;
  norm.counters[1] = 0;
}

// Output: write(row, at, words) takes inputs 4 at.. of a row as bf16, called by whole warps for 128 inputs.
template <typename Output>
class NormBlock {
 public:
  // shared: norm_block_bytes() of it. inputs are a multiple of 4.
  __device__ __forceinline__ NormBlock(const StreamResidual& residual, const NormBlocks& norm, const Output& output,
                                       int rows, int inputs, unsigned char* shared)
      : r_(residual),
        norm_(norm),
        output_(output),
        rows_(rows),
        inputs_(inputs),
        team_(static_cast<int>(threadIdx.x) / kNormTeamThreads),
        thread_(static_cast<int>(threadIdx.x) % kNormTeamThreads),
        post_(reinterpret_cast<float4*>(shared)),
        next_(post_ + inputs / 4),
        partial_(reinterpret_cast<float*>(next_ + inputs / 4) + team_ * (kNormSums * kGemvWarps)) {}

  // All threads of the block.
  __device__ __forceinline__ void run() const {
    for (int i = static_cast<int>(threadIdx.x); i < inputs_ / 4; i += static_cast<int>(blockDim.x)) {
      next_[i] = reinterpret_cast<const float4*>(r_.next_norm)[i];
      post_[i] = r_.update != nullptr ? reinterpret_cast<const float4*>(r_.post_norm)[i] : make_float4(0, 0, 0, 0);
    }
    wait_for_predecessor();
    __syncthreads();
    const int teams = rows_ > norm_.count ? kNormTeams : 1;
    if (team_ >= teams) return;
#pragma unroll 1
    for (int row = static_cast<int>(blockIdx.x) * teams + team_; row < rows_; row += norm_.count * teams) make_row(row);
  }

 private:
  static constexpr int kSlots = kGemvMaxNormInputs / (4 * kNormTeamThreads);  // vectors of four inputs of a thread
  static_assert(kNormTeamThreads == 32 * kGemvWarps);                         // sum_of_warps() adds as many

  __device__ __forceinline__ int vector_of(int slot) const {
    return slot * kNormTeamThreads + thread_;
  }
  __device__ __forceinline__ void team_sync() const {  // numbers that the compiler knows: with others it takes all 16
    static_assert(kNormTeams == 2);
    if (team_ == 0) {
      named_sync(1, kNormTeamThreads);
    } else {
      named_sync(2, kNormTeamThreads);
    }
  }

  __device__ __forceinline__ void make_row(int row) const {
    const long long first = static_cast<long long>(row) * inputs_;
    float4 hidden[kSlots];
    uint2 update[kSlots];
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int at = vector_of(slot);
      const bool there = 4 * at < inputs_;
      const uint4 raw = there ? load_u128(r_.hidden + first + 4 * at) : make_uint4(0, 0, 0, 0);
      hidden[slot] =
          make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z), __uint_as_float(raw.w));
      update[slot] = there && r_.update != nullptr
                         ? load_u64(static_cast<const __nv_bfloat16*>(r_.update) + first + 4 * at)
                         : make_uint2(0, 0);
    }
    add_squares(hidden, update);
    const float per = 1.0f / static_cast<float>(inputs_);
    const bool updated = r_.update != nullptr;
    const RowNorm norm(partial_, per, r_.epsilon, updated);
    const float scale = updated ? r_.scale : 1.0f;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (4 * vector_of(slot) >= inputs_) continue;
      const float4 post = post_[vector_of(slot)];
      float u[4];
      to_float(update[slot], u);
      hidden[slot] = make_float4(fmaf(u[0] * norm.first, post.x, hidden[slot].x) * scale,
                                 fmaf(u[1] * norm.first, post.y, hidden[slot].y) * scale,
                                 fmaf(u[2] * norm.first, post.z, hidden[slot].z) * scale,
                                 fmaf(u[3] * norm.first, post.w, hidden[slot].w) * scale);
    }
    const float squares = norm.cancelled ? squares_of(hidden) : norm.squares * (scale * scale);
    write_row(row, hidden, rsqrtf(squares * per + r_.epsilon));
    team_sync();  // all have written, and read the sums
    if (thread_ == 0) counter_add(norm_.counters);
  }

  // The row's sums of u u, h h, h v and v v over each warp, with v the update times its weight.
  __device__ __forceinline__ void add_squares(const float4 (&hidden)[kSlots], const uint2 (&update)[kSlots]) const {
    float sums[4] = {};
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (4 * vector_of(slot) >= inputs_) continue;
      const float4 post = post_[vector_of(slot)];
      const float weights[4] = {post.x, post.y, post.z, post.w};
      const float h[4] = {hidden[slot].x, hidden[slot].y, hidden[slot].z, hidden[slot].w};
      float u[4];
      to_float(update[slot], u);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float v = u[i] * weights[i];
        sums[0] = fmaf(u[i], u[i], sums[0]);
        sums[1] = fmaf(h[i], h[i], sums[1]);
        sums[2] = fmaf(h[i], v, sums[2]);
        sums[3] = fmaf(v, v, sums[3]);
      }
    }
    const int lane = thread_ % 32;
    const float sum = fold4<32>(sums, lane, Sum{});
    if (lane % 8 == 0) partial_[lane / 8 * kGemvWarps + thread_ / 32] = sum;
    team_sync();
  }

  __device__ __forceinline__ float squares_of(const float4 (&row)[kSlots]) const {
    float sum = 0.0f;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const float4 v = row[slot];
      sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (thread_ % 32 == 0) partial_[4 * kGemvWarps + thread_ / 32] = sum;
    team_sync();
    return sum_of_warps(partial_ + 4 * kGemvWarps);
  }

  __device__ __forceinline__ void write_row(int row, const float4 (&values)[kSlots], float factor) const {
    const long long first = static_cast<long long>(row) * inputs_;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int at = vector_of(slot);
      if (at / 32 * 128 >= inputs_) continue;  // the same for a warp
      uint2 words = make_uint2(0, 0);
      if (4 * at < inputs_) {
        const float4 next = next_[at];
        const float4 v = values[slot];
        if (r_.hidden_out != nullptr) *reinterpret_cast<float4*>(r_.hidden_out + first + 4 * at) = v;
        const __nv_bfloat162 low = __floats2bfloat162_rn(v.x * (factor * next.x), v.y * (factor * next.y));
        const __nv_bfloat162 high = __floats2bfloat162_rn(v.z * (factor * next.z), v.w * (factor * next.w));
        words =
            make_uint2(*reinterpret_cast<const std::uint32_t*>(&low), *reinterpret_cast<const std::uint32_t*>(&high));
      }
      output_.write(row, at, words);
    }
  }

  const StreamResidual& r_;
  const NormBlocks& norm_;
  const Output output_;
  const int rows_;
  const int inputs_;
  const int team_;
  const int thread_;  // of the team
  float4* post_;      // the norms' weights, in shared memory
  float4* next_;
  float* partial_;  // [sum][warp]
};

}  // namespace facet::linear
