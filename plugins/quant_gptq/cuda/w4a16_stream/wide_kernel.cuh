// The kernel of wide.cuh.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/wide_copy.cuh"
#include "quant_gptq/cuda/w4a16_stream/wide_inputs.cuh"
#include "quant_gptq/cuda/w4a16_stream/wide_multiply.cuh"
#include "quant_gptq/cuda/w4a16_stream/wide_store.cuh"

namespace facet::linear {

__device__ __forceinline__ void wide_init(const WideArgs& a, const WideMemory& m) {
  const int passes = a.norm.count > 0 ? 1 : (2 << a.k_shift) * (kWideRows / 4);
  for (int stage = 0; stage < a.stages; ++stage) {
    barrier_init(m.full(stage), 1 + passes);
    barrier_init(m.raw(stage), 1);
    barrier_init(m.empty(stage), kWideConsumers / 32);
  }
  barrier_init(m.summed(), 1);
  barrier_init_fence();
}

template <int BITS, int SEGMENTS, bool ASYMMETRIC>
__global__ void __launch_bounds__(kWideThreads, 2)
    wide_kernel(const __grid_constant__ WideArgs a, const __grid_constant__ CUtensorMap map) {
  const WideMemory m(block_memory_1024, a);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_successor_begin();
  const int block = product_block(a.norm);
  if (block < 0) {
    const WideNormOutput<SEGMENTS, ASYMMETRIC, BITS == 4> output(a);
    NormBlock<WideNormOutput<SEGMENTS, ASYMMETRIC, BITS == 4>>(a.residual, a.norm, output, a.rows,
                                                               static_cast<int>(a.shape.in_features), block_memory_1024)
        .run();
    return;
  }
  if (block >= a.clusters << a.split_shift) {  // keeps its place on a multiprocessor
    wait_for_predecessor();
    return;
  }
  if (threadIdx.x == 0) wide_init(a, m);
  __syncthreads();
  if (a.split_shift > 0) cluster_arrive();
  if (warp < kWideConsumers / 32) {
    more_registers<kWideMultiplyRegisters>();
    wait_for_predecessor();                 // before the first write
    if (a.split_shift > 0) cluster_wait();  // the others' barriers are made
    WideMultiplier<BITS, SEGMENTS, ASYMMETRIC>(a, m).run(
        [&](int tile, int n) { wide_finish(a, m, tile, n, warp, lane); });
    return;
  }
  fewer_registers<kWideOtherRegisters>();
  if (warp < kWideConsumers / 32 + kWideCutWarps) {
    if (a.norm.count == 0) {
      wait_for_predecessor();
      WideCutter<SEGMENTS, ASYMMETRIC, BITS == 4>(a, m, lane).run(warp - kWideConsumers / 32);
    }
  } else if (warp == kWideThreads / 32 - 1) {
    wide_copy_weights(a, m, lane);
  } else if (lane == 0) {
    wide_copy_inputs(a, map, m);
  }
  __syncwarp();
  if (a.split_shift > 0) cluster_wait();
}

using WideKernel = void (*)(WideArgs, CUtensorMap);

template <int BITS, bool ASYMMETRIC>
WideKernel wide_kernel_of(int segments) {
  if (segments == 1) return wide_kernel<BITS, 1, ASYMMETRIC>;
  return segments == 2 ? wide_kernel<BITS, 2, ASYMMETRIC> : wide_kernel<BITS, 4, ASYMMETRIC>;
}

inline WideKernel wide_kernel_of(const Rows32& shape) {
  if (shape.bits == 8) return wide_kernel_of<8, false>(shape.segments);
  return shape.asymmetric != 0 ? wide_kernel_of<4, true>(shape.segments) : wide_kernel_of<4, false>(shape.segments);
}

}  // namespace facet::linear
