// Copies from global to shared memory by the copy engine: one thread starts one, its bytes count at a barrier in shared
// memory (barrier_expect). For device code; addresses are those of shared_address.
#pragma once

#include <cstdint>

#include "facet/sdk/cuda/async.cuh"

struct CUtensorMap_st;  // CUtensorMap of <cuda.h>

namespace facet::cuda {

// `bytes` in a row. Target, source and bytes are multiples of 16.
__device__ __forceinline__ void bulk_copy(std::uint32_t target, const void* source, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
               "l"(source), "r"(bytes), "r"(barrier)
               : "memory");
}

// What a copy leaves in the L2 cache: with this policy its lines are the first to go. For what passes through once.
__device__ __forceinline__ std::uint64_t evict_first_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// The copy above with a policy.
__device__ __forceinline__ void bulk_copy(std::uint32_t target, const void* source, std::uint32_t bytes,
                                          std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// A box of a tensor of two dimensions, from element (x, y) on; x runs within a row. The map is a __grid_constant__
// parameter of the kernel or lies in global memory. The target is a multiple of 128, with the 128-byte swizzle of 1024.
__device__ __forceinline__ void tensor_copy(std::uint32_t target, const CUtensorMap_st& map, int x, int y,
                                            std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(target),
      "l"(&map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// Of three dimensions.
__device__ __forceinline__ void tensor_copy(std::uint32_t target, const CUtensorMap_st& map, int x, int y, int z,
                                            std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(target),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
// Of four dimensions.
__device__ __forceinline__ void tensor_copy(std::uint32_t target, const CUtensorMap_st& map, int x, int y, int z, int w,
                                            std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(target),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
      : "memory");
}

}  // namespace facet::cuda
