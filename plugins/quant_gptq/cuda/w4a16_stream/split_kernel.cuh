// The kernel of split.cuh; each number of rows is compiled in a file of its own.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/split_inputs.cuh"
#include "quant_gptq/cuda/w4a16_stream/split_multiply.cuh"

namespace facet::linear {

template <int ROWS>
__device__ __forceinline__ void split_init(const StreamArgs& a, const SplitMemory<ROWS>& m) {
  for (int slot = 0; slot < a.slots; ++slot) {
    barrier_init(m.gemv.full + 8 * slot, 1);
    barrier_init(m.gemv.empty + 8 * slot, kSplitWarps);
  }
  SumFinisher<ROWS>::init(a, m.sum, kSplitWarps);
}

template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS>
__global__ void __launch_bounds__(kSplitBound, 2) split_kernel(const __grid_constant__ StreamArgs a) {
  const SplitMemory<ROWS> m(block_memory_128, a);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  let_successor_begin();
  if (static_cast<int>(blockIdx.x) >= a.clusters * a.splits) {  // keeps its place on a multiprocessor
    wait_for_predecessor();
    return;
  }
  if (threadIdx.x == 0) split_init(a, m);
  __syncthreads();
  if (a.splits > 1) cluster_arrive();
  if (warp == kSplitCopyWarp) {
    if (lane == 0) split_produce(a, m.gemv);
    __syncwarp();
    if (a.splits > 1) cluster_wait();
  } else if (warp == kSplitFinishWarp) {
    wait_for_predecessor();            // before the first write
    if (a.splits > 1) cluster_wait();  // the others' barriers are made
    SumFinisher<ROWS>(a, m.sum, kGemvWarps, lane).run();
  } else {
    const SplitShare share(a);
    split_inputs<SEGMENTS>(a, m, share, warp, lane);
    split_consume<BITS, SEGMENTS, ASYMMETRIC>(a, m, share, warp, lane);
    if (a.splits > 1) cluster_wait();
  }
}

using SplitKernel = void (*)(StreamArgs);

template <int BITS, bool ASYMMETRIC, int ROWS>
SplitKernel split_kernel_of(int segments) {
  if (segments == 1) return split_kernel<BITS, 1, ASYMMETRIC, ROWS>;
  return segments == 2 ? split_kernel<BITS, 2, ASYMMETRIC, ROWS> : split_kernel<BITS, 4, ASYMMETRIC, ROWS>;
}

template <int ROWS>
SplitKernel split_kernel_of(const Rows32& shape) {
  if (shape.bits == 8) return split_kernel_of<8, false, ROWS>(shape.segments);
  return shape.asymmetric != 0 ? split_kernel_of<4, true, ROWS>(shape.segments)
                               : split_kernel_of<4, false, ROWS>(shape.segments);
}

SplitKernel split_kernel_2(const Rows32& shape);
SplitKernel split_kernel_4(const Rows32& shape);

}  // namespace facet::linear
