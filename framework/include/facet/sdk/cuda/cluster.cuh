// Blocks of a cluster: a barrier of all their threads, and places in each other's shared memory. For device code.
#pragma once

#include <cstdint>

namespace facet::cuda {

// All threads of all blocks arrive once and wait once; what they wrote before, shared memory included, can be read
// after. A block's shared memory is there from the first such barrier on, and must not end before the last access of
// another.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// The same where all threads of a warp come together.
__device__ __forceinline__ void cluster_arrive_aligned() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait_aligned() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The place of `address` of this block's shared memory in that of block `rank` of the cluster.
__device__ __forceinline__ std::uint32_t cluster_address(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t result;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}

}  // namespace facet::cuda
