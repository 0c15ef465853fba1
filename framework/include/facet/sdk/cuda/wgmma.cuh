// What warpgroup products (wgmma.mma_async) of any shape need around them. For device code; a warpgroup is four warps
// from a multiple of four on, and all its threads call together.
#pragma once

#include <cstdint>

#include "facet/sdk/cuda/async.cuh"

namespace facet::cuda {

// Before the first product, and before any whose registers other instructions wrote.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// The products since the last call are a group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most PENDING of the committed groups are under way.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from reading sums before the wait above.
template <int COUNT>
__device__ __forceinline__ void wgmma_sums_ready(float (&d)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int COUNT>
__device__ __forceinline__ void wgmma_sums_ready(int (&d)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// Descriptor of an operand in shared memory: panels of 128 bytes a row in the 128-byte swizzle, so that 8 rows are 1024
// bytes. `address` is a multiple of that, plus 32 for each step of 32 bytes along the depth when the depth runs within
// the rows; then leading_bytes is not used. When the rows lie along the depth it is the distance of two panels.
__device__ __forceinline__ std::uint64_t wgmma_matrix(std::uint32_t address, std::uint32_t leading_bytes = 16) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) |
         (static_cast<std::uint64_t>(leading_bytes >> 4) << 16) | static_cast<std::uint64_t>((address & 0x3ffffu) >> 4);
}

// Registers of a thread from here on, a multiple of 8 from 24 to 256. To have more, others must have given up as many.
template <int COUNT>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

}  // namespace facet::cuda
