// The block's shared memory that the launch sizes. For device code.
#pragma once

namespace facet::cuda {

// Its beginning, where a kernel needs it at a multiple of so many bytes; the one without a number lies anywhere. Names
// of arrays and not a function: around a call, nvcc computes addresses in 64 bits.
extern __shared__ unsigned char block_memory[];
extern __shared__ __align__(128) unsigned char block_memory_128[];
extern __shared__ __align__(1024) unsigned char block_memory_1024[];

// One flag of the block, beside that memory.
__device__ __forceinline__ bool& block_flag() {
  __shared__ bool flag;
  return flag;
}

}  // namespace facet::cuda
