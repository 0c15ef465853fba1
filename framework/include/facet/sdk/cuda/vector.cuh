// A few neighbouring elements at once, as f32 in registers, in one load or store. For device code.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace facet::cuda {

template <int V>
struct Floats {
  float at[V];
};

template <int V>
__device__ inline float sum_of_squares(const Floats<V>& x) {
  float sum = 0;
#pragma unroll
  for (int e = 0; e < V; ++e) sum = __fmaf_rn(x.at[e], x.at[e], sum);
  return sum;
}

// One access of BYTES.
template <int BYTES>
struct Word;
template <>
struct Word<1> {
  using type = std::uint8_t;
};
template <>
struct Word<2> {
  using type = std::uint16_t;
};
template <>
struct Word<4> {
  using type = std::uint32_t;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

template <int V, typename T>
struct alignas(V * sizeof(T)) Pack {
  T at[V];
};

// Vector `index` of a row: elements V * index to V * index + V - 1.
template <int V, typename T>
__device__ inline Pack<V, T> load_pack(const T* row, std::int64_t index) {
  using W = typename Word<V * sizeof(T)>::type;
  Pack<V, T> pack;
  *reinterpret_cast<W*>(&pack) = reinterpret_cast<const W*>(row)[index];
  return pack;
}
template <int V>
__device__ inline Floats<V> load_floats(const float* row, std::int64_t index) {
  const Pack<V, float> pack = load_pack<V>(row, index);
  Floats<V> out;
#pragma unroll
  for (int e = 0; e < V; ++e) out.at[e] = pack.at[e];
  return out;
}
template <int V>
__device__ inline Floats<V> load_floats(const __nv_bfloat16* row, std::int64_t index) {
  const Pack<V, __nv_bfloat16> pack = load_pack<V>(row, index);
  Floats<V> out;
#pragma unroll
  for (int e = 0; e < V; ++e) out.at[e] = __bfloat162float(pack.at[e]);
  return out;
}

template <int V, typename T>
__device__ inline void store_pack(T* row, std::int64_t index, const Pack<V, T>& pack) {
  using W = typename Word<V * sizeof(T)>::type;
  reinterpret_cast<W*>(row)[index] = *reinterpret_cast<const W*>(&pack);
}
template <int V>
__device__ inline void store_floats(float* row, std::int64_t index, const Floats<V>& x) {
  Pack<V, float> pack;
#pragma unroll
  for (int e = 0; e < V; ++e) pack.at[e] = x.at[e];
  store_pack<V>(row, index, pack);
}
template <int V>
__device__ inline void store_floats(__nv_bfloat16* row, std::int64_t index, const Floats<V>& x) {
  Pack<V, __nv_bfloat16> pack;
#pragma unroll
  for (int e = 0; e < V; ++e) pack.at[e] = __float2bfloat16(x.at[e]);
  store_pack<V>(row, index, pack);
}

// Whether all rows of `width` elements can be accessed V at a time: 16 bytes is the widest access.
template <int V, typename... Pointers>
bool aligned_rows(std::int64_t width, Pointers... pointers) {
  return width % V == 0 && ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace facet::cuda
