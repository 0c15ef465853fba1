// Sums of a tile of wide.cuh to y, and the GELU gate.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/wide.cuh"

namespace facet::linear {

// Four rows of x of one row of W: the sums of all sources, in order.
__device__ __forceinline__ float4 wide_sum(const float* sums, int sources, int stride) {
  float4 sum = *reinterpret_cast<const float4*>(sums);
#pragma unroll 1
  for (int source = 1; source < sources; ++source) {
    const float4 more = *reinterpret_cast<const float4*>(sums + source * stride);
    sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
  }
  return sum;
}

__device__ __forceinline__ void wide_store(const WideArgs& a, int first_row, int column, const float (&values)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + i;
    if (row >= a.rows) return;
    const long long at = row * a.y_stride + column;
    if (a.output_f32 != 0) {
      static_cast<float*>(a.y)[at] = values[i];
    } else {
      static_cast<__nv_bfloat16*>(a.y)[at] = __float2bfloat16_rn(values[i]);
    }
  }
}

// The rows that this block owns of its n-th tile; called by all multiplying warps.
__device__ __forceinline__ void wide_finish(const WideArgs& a, const WideMemory& m, int tile, int n, int warp,
                                            int lane) {
  const WideWalk walk(a);
  const int unit_shift = 2 - a.k_shift - a.split_shift;
  const int units = 1 << unit_shift;
  const int sources = 1 << (a.split_shift + a.k_shift);
  const int source_floats = units * kUnitRows * kWideRows;
  if (threadIdx.x == 0) barrier_expect(m.summed(), sources * source_floats * 4);
  barrier_wait_cluster(m.summed(), n & 1);
  const float factor = *reinterpret_cast<const float*>(a.packed);
  const int half = static_cast<int>(a.shape.out_features) / 2;
#pragma unroll 1
  for (int item = warp; item < units * (kWideRows / 4); item += kWideConsumers / 32) {
    const int unit = item & (units - 1);
    const int first_row = (item >> unit_shift) * 4;
    const int unit_of_w = tile * walk.units + walk.rank * units + unit;
    if (first_row >= a.rows || unit_of_w >= a.shape.units) continue;
    const float* sums =
        m.sums + (n & (a.sum_buffers - 1)) * (kWideSumBytes / 4) + (unit * kUnitRows + lane) * kWideRows + first_row;
    const float4 sum = wide_sum(sums, sources, source_floats);
    float values[4] = {factor * sum.x, factor * sum.y, factor * sum.z, factor * sum.w};
    const int inside = unit_of_w * 16 + lane % 16;  // of a half
    if (a.fuse_gate != 0) {                         // rows of gate, then of up
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = gelu_tanh(values[i]) * __shfl_down_sync(~0u, values[i], 16);
      if (lane < 16 && inside < half) wide_store(a, first_row, inside, values);
    } else if (a.shape.gate != 0) {
      if (inside < half) wide_store(a, first_row, lane < 16 ? inside : half + inside, values);
    } else {
      const int column = unit_of_w * kUnitRows + lane;
      if (column < a.shape.out_features) wide_store(a, first_row, column, values);
    }
  }
}

}  // namespace facet::linear
