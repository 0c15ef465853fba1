// Counters in device memory by which blocks of one launch wait for each other. For device code.
#pragma once

#include "quant_gptq/cuda/device/ptx.cuh"

namespace facet::linear {

// Adds 1; who reads the new value by counter_read() also sees what this thread, and threads it had a barrier with,
// wrote before.
__device__ __forceinline__ void counter_add(unsigned* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ unsigned counter_read(const unsigned* counter) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
// Adds 1 and returns the value before.
__device__ __forceinline__ unsigned counter_next(unsigned* counter) {
  unsigned value;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

}  // namespace facet::linear
