// One head of queries, keys or values in the registers of a warp: norm, rotation, int8 codes. Whoever makes heads in a
// kernel of its own gets the same bits with these: every product and sum is written out.
#pragma once

#include "facet/sdk/cuda/vector.cuh"

namespace facet::cuda {

// Lane l holds the pairs (i, i + dim / 2) for the V neighbours i from V l on, from V (l + 32) on, ..., so that a
// rotation needs no other lane.
template <int V, int SLOTS>
struct Head {
  Floats<V> low[SLOTS], high[SLOTS];
};

template <int V>
__device__ Floats<V> all_of(float value) {
  Floats<V> out;
#pragma unroll
  for (int e = 0; e < V; ++e) out.at[e] = value;
  return out;
}

// Rows of `count` values for the low and the high half; `otherwise` past them.
template <int V, int SLOTS, typename T>
__device__ Head<V, SLOTS> load_halves(const T* low, const T* high, int count, float low_otherwise, float high_otherwise,
                                      int lane) {
  Head<V, SLOTS> head;
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    const int at = slot * 32 + lane;
    const bool known = at * V < count;
    head.low[slot] = known ? load_floats<V>(low, at) : all_of<V>(low_otherwise);
    head.high[slot] = known ? load_floats<V>(high, at) : all_of<V>(high_otherwise);
  }
  return head;
}

// Of a warp of 32; the same in every lane.
template <int V, int SLOTS>
__device__ void norm(Head<V, SLOTS>& head, const Head<V, SLOTS>& weight, float epsilon, int half) {
  float squares = 0;
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    squares = __fadd_rn(squares, __fadd_rn(sum_of_squares(head.low[slot]), sum_of_squares(head.high[slot])));
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    squares = __fadd_rn(squares, __shfl_xor_sync(0xffffffffu, squares, offset));
  const float factor = rsqrtf(__fadd_rn(squares / static_cast<float>(2 * half), epsilon));
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
#pragma unroll
    for (int e = 0; e < V; ++e) {
      head.low[slot].at[e] = __fmul_rn(head.low[slot].at[e], __fmul_rn(factor, weight.low[slot].at[e]));
      head.high[slot].at[e] = __fmul_rn(head.high[slot].at[e], __fmul_rn(factor, weight.high[slot].at[e]));
    }
  }
}

// Weights of a query whose pairs from `live` on meet values in place of keys: there times the key's weights.
template <int V, int SLOTS>
__device__ void take_key_weight(Head<V, SLOTS>& weight, const Head<V, SLOTS>& key_weight, int live, int lane) {
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
#pragma unroll
    for (int e = 0; e < V; ++e) {
      const bool turns = (slot * 32 + lane) * V + e < live;
      weight.low[slot].at[e] = __fmul_rn(weight.low[slot].at[e], turns ? 1.0f : key_weight.low[slot].at[e]);
      weight.high[slot].at[e] = __fmul_rn(weight.high[slot].at[e], turns ? 1.0f : key_weight.high[slot].at[e]);
    }
  }
}

// `angles`: cosines as the low half, sines as the high one.
template <int V, int SLOTS>
__device__ void rotate(Head<V, SLOTS>& head, const Head<V, SLOTS>& angles) {
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
#pragma unroll
    for (int e = 0; e < V; ++e) {
      const float c = angles.low[slot].at[e], s = angles.high[slot].at[e];
      const float low = head.low[slot].at[e], high = head.high[slot].at[e];
      head.low[slot].at[e] = __fmaf_rn(low, c, -__fmul_rn(high, s));
      head.high[slot].at[e] = __fmaf_rn(high, c, __fmul_rn(low, s));
    }
  }
}

// Calls store(index, low, high) for each of the lane's vectors, by their index in a half of the row.
template <int V, int SLOTS, typename Store>
__device__ void each_pair(const Head<V, SLOTS>& head, int half, int lane, Store store) {
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    const int at = slot * 32 + lane;
    if (at * V < half) store(at, head.low[slot], head.high[slot]);
  }
}

// The scale of a row of int8 codes, and what a value is multiplied by to become one.
struct CodeScale {
  float scale, inverse;
  __device__ std::int8_t code(float value) const { return static_cast<std::int8_t>(rintf(__fmul_rn(value, inverse))); }
};
template <int V, int SLOTS>
__device__ CodeScale code_scale(const Head<V, SLOTS>& head) {
  float largest = 0;
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
#pragma unroll
    for (int e = 0; e < V; ++e)
      largest = fmaxf(largest, fmaxf(fabsf(head.low[slot].at[e]), fabsf(head.high[slot].at[e])));
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  return {largest / 127.0f, largest > 0 ? 127.0f / largest : 0.0f};
}

}  // namespace facet::cuda
