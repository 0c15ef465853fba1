// What the header of this name does, by the emulated machine.
#pragma once

#include <cuda.h>

#include <cstring>

#include "emulated/device_code.h"
#include "facet/sdk/cuda/barrier.cuh"
#include "facet/sdk/cuda/cluster.cuh"
#include "facet/sdk/cuda/copy.cuh"
#include "facet/sdk/cuda/launch.cuh"
#include "facet/sdk/cuda/memory.cuh"

namespace facet::attention::cuda {

using ::facet::cuda::async_fence_global, ::facet::cuda::async_fence_shared, ::facet::cuda::shared_address;
using ::facet::cuda::barrier_arrive, ::facet::cuda::barrier_expect, ::facet::cuda::barrier_init;
using ::facet::cuda::barrier_init_fence, ::facet::cuda::barrier_wait, ::facet::cuda::named_sync;
using ::facet::cuda::block_flag, ::facet::cuda::block_memory;
using ::facet::cuda::bulk_copy, ::facet::cuda::tensor_copy;
using ::facet::cuda::cluster_address, ::facet::cuda::cluster_arrive_aligned, ::facet::cuda::cluster_wait_aligned;
using ::facet::cuda::let_successor_begin, ::facet::cuda::wait_for_predecessor;

inline void copy16_async(std::uint32_t to, const void* from, bool valid) {
  emulated::copy16(to, valid ? from : nullptr);
}
inline void commit_copies() {
  emulated::copies_commit();
}
template <int kPending>
void wait_copies() {
  emulated::copies_wait(kPending);
}

inline void load_matrices(std::uint32_t (&to)[4], std::uint32_t from) {
  emulated::load_matrices(to, 4, from, false);
}
inline void load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t from) {
  emulated::load_matrices(to, 4, from, true);
}
inline void load_two_matrices_transposed(std::uint32_t& a, std::uint32_t& b, std::uint32_t from) {
  std::uint32_t to[2];
  emulated::load_matrices(to, 2, from, true);
  a = to[0];
  b = to[1];
}

inline std::uint32_t transpose_matrix(std::uint32_t from) {
  return emulated::transpose_matrix(from);
}

inline void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  emulated::mma_bf16(sum, a, b0, b1);
}

inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  std::uint32_t packed;
  std::memcpy(&packed, &both, sizeof packed);
  return packed;
}
inline std::uint32_t and_or(std::uint32_t word, std::uint32_t mask, std::uint32_t set) {
  return (word & mask) | set;
}
inline std::uint32_t subtract_bf16(std::uint32_t a, std::uint32_t b) {
  const auto low = [](std::uint32_t pair) { return __uint_as_float(pair << 16); };
  const auto high = [](std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); };
  return pack_bf16(low(a) - low(b), high(a) - high(b));
}
inline float exp2_fast(float x) {
  return std::exp2(x);
}

template <typename T>
void store_shared(std::uint32_t to, const T& value) {
  std::memcpy(emulated::shared_pointer(to, sizeof value), &value, sizeof value);
}
inline void store4(std::uint32_t to, std::uint32_t value) {
  store_shared(to, value);
}
inline void store8(std::uint32_t to, uint2 value) {
  store_shared(to, value);
}
inline void store16(std::uint32_t to, uint4 value) {
  store_shared(to, value);
}
inline float4 load16(std::uint32_t from) {
  float4 value;
  std::memcpy(&value, emulated::shared_pointer(from, sizeof value), sizeof value);
  return value;
}
inline uint4 load_words(std::uint32_t from) {
  uint4 value;
  std::memcpy(&value, emulated::shared_pointer(from, sizeof value), sizeof value);
  return value;
}
inline void fetch(std::uint32_t) {}

inline void store_remote2(std::uint32_t to, float2 value) {
  store_shared(to, value);
}
inline void store_remote4(std::uint32_t to, float4 value) {
  store_shared(to, value);
}

}  // namespace facet::attention::cuda
