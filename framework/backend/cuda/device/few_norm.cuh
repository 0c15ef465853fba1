// The norm of few rows: what counts is how long one row takes, not how many bytes pass.
//
// Both norms of a residual update come from one sum over the block. With u the update, v = u * post_norm and h the
// stream, the first norm's factor f needs the sum of u u; the sum of squares of h + f v, which the second needs, is
// that of h h plus 2 f times that of h v plus f f times that of v v.
#pragma once

#include "device_math.cuh"
#include "facet/sdk/cuda/vector.cuh"
#include "norm_params.cuh"

namespace facet::cuda {

inline constexpr int kFewSlots = 2;
inline constexpr int kFewThreads = 512;

// Sums over the block of four values, the same in every thread; in a fixed order, so results repeat. scratch:
// kFewThreads / 32 float4.
__device__ inline float4 block_sums(float4 value, float4* scratch) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value.x += __shfl_xor_sync(~0u, value.x, offset);
    value.y += __shfl_xor_sync(~0u, value.y, offset);
    value.z += __shfl_xor_sync(~0u, value.z, offset);
    value.w += __shfl_xor_sync(~0u, value.w, offset);
  }
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  // Lane 4 w + i takes the sum i of the warps w and w + 8.
  const auto* partial = reinterpret_cast<const float*>(scratch);
  float sum = lane / 4 < warps ? partial[lane] : 0.0f;
  if (lane / 4 + 8 < warps) sum += partial[32 + lane];
#pragma unroll
  for (int offset = 16; offset > 2; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  return make_float4(__shfl_sync(~0u, sum, 0), __shfl_sync(~0u, sum, 1), __shfl_sync(~0u, sum, 2),
                     __shfl_sync(~0u, sum, 3));
}

// A block a row; thread t holds the vectors t and t + threads of V elements.
template <int V>
__global__ void __launch_bounds__(kFewThreads, 1) few_norm_kernel(const __grid_constant__ NormParams x) {
  static_assert(kFewThreads / 32 <= 16, "block_sums() adds two warps a lane");
  __shared__ float4 scratch[2][kFewThreads / 32];
  let_successor_begin();
  const int vectors = x.width / V;
  const bool updates = x.update != nullptr;
  // Weights are constants, so they are read while the launch before still runs.
  Floats<V> post[kFewSlots] = {}, next[kFewSlots] = {};
#pragma unroll
  for (int slot = 0; slot < kFewSlots; ++slot) {
    const int at = slot * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    if (at >= vectors) continue;
    if (updates) post[slot] = load_floats<V>(x.post_norm, at);
    if (x.next_norm != nullptr) next[slot] = load_floats<V>(x.next_norm, at);
  }
  wait_for_predecessor();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * x.width;
  Floats<V> value[kFewSlots] = {}, update[kFewSlots] = {};
#pragma unroll
  for (int slot = 0; slot < kFewSlots; ++slot) {
    const int at = slot * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    if (at >= vectors) continue;
    value[slot] = load_floats<V>(x.hidden + row, at);
    if (updates) update[slot] = load_floats<V>(x.update + row, at);
  }
  float4 sums = make_float4(0, 0, 0, 0);  // of u u, h h, h v and v v
#pragma unroll
  for (int slot = 0; slot < kFewSlots; ++slot) {
#pragma unroll
    for (int e = 0; e < V; ++e) {
      const float u = update[slot].at[e], h = value[slot].at[e], v = u * post[slot].at[e];
      sums.x = fmaf(u, u, sums.x);
      sums.y = fmaf(h, h, sums.y);
      sums.z = fmaf(h, v, sums.z);
      sums.w = fmaf(v, v, sums.w);
      update[slot].at[e] = v;
    }
  }
  sums = block_sums(sums, scratch[0]);
  float squares = sums.y;
  if (updates) {
    const float factor = inverse_rms(sums.x, x.width, x.epsilon);
#pragma unroll
    for (int slot = 0; slot < kFewSlots; ++slot) {
      const int at = slot * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
#pragma unroll
      for (int e = 0; e < V; ++e) value[slot].at[e] = fmaf(update[slot].at[e], factor, value[slot].at[e]) * x.scale;
      if (at < vectors) store_floats<V>(x.hidden_out + row, at, value[slot]);
    }
    const float parts = fmaf(factor * factor, sums.w, sums.y);
    squares = fmaf(2.0f * factor, sums.z, parts);
    // Where the update all but cancels the stream, rounding of the parts is as large as what is left: sum that.
    const bool cancelled = !(squares >= 0x1p-6f * parts);
    squares *= x.scale * x.scale;
    if (cancelled) {
      float left = 0;
#pragma unroll
      for (int slot = 0; slot < kFewSlots; ++slot) left += sum_of_squares(value[slot]);
      squares = block_sums(make_float4(left, 0, 0, 0), scratch[1]).x;
    }
  }
  if (x.next_norm == nullptr) return;
  const float factor = inverse_rms(squares, x.width, x.epsilon);
#pragma unroll
  for (int slot = 0; slot < kFewSlots; ++slot) {
    const int at = slot * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    if (at >= vectors) continue;
#pragma unroll
    for (int e = 0; e < V; ++e) value[slot].at[e] *= factor * next[slot].at[e];
    store_floats<V>(x.normed + row, at, value[slot]);
  }
}

}  // namespace facet::cuda
