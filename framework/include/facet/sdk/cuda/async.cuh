// Addresses and fences for the instructions that work beside the threads: the copy engine's (copy.cuh) and warpgroup
// products (wgmma.cuh). For device code.
#pragma once

#include <cstdint>

namespace facet::cuda {

// The 32-bit address that these instructions take, of a place in the block's own shared memory.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Orders this thread's ordinary reads and writes, also those it waited for, before what such instructions do later.
// When another thread starts them, a barrier must follow. Of any memory:
__device__ __forceinline__ void async_fence() {
  asm volatile("fence.proxy.async;" ::: "memory");
}
// Of the block's shared memory only.
__device__ __forceinline__ void async_fence_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Of global memory only.
__device__ __forceinline__ void async_fence_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace facet::cuda
