// What warpgroup products (wgmma.mma_async) of any shape need around them. For device code; a warpgroup is four warps
// from a multiple of four on, and all its threads call together.
#pragma once

#include <cstdint>

#include "facet/sdk/cuda/async.cuh"
#include "facet/sdk/cuda/matrix.cuh"

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
