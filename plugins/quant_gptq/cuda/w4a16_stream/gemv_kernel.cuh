// The kernel of gemv.cuh and its launch; each row count is compiled in a file of its own.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/gemv_inputs.cuh"
#include "quant_gptq/cuda/w4a16_stream/gemv_multiply.cuh"

namespace facet::linear {

// This warp's products of a unit to its place among the partial sums.
template <int ROWS>
__device__ __forceinline__ void put_sums(const float (&acc)[2][4], float* target, int lane) {
  const int g = lane >> 2;
  const int t = lane & 3;
#pragma unroll
  for (int j = 0; j < 4; ++j) {  // rows g, g+8, 16+g, 24+g
    float even = acc[j >> 1][2 * (j & 1)];
    float odd = acc[j >> 1][2 * (j & 1) + 1];
    float* at = target + (j >> 1) * 16 + (j & 1) * 8 + g;
    if constexpr (ROWS == 1) {  // both digits
      if (t == 0) *at = even + odd;
    } else {  // rows 2t, 2t+1; the second digits are ROWS / 2 lanes on
      even += __shfl_down_sync(~0u, even, ROWS / 2);
      odd += __shfl_down_sync(~0u, odd, ROWS / 2);
      if (t < ROWS / 2) {
        at[2 * t * kUnitRows] = even;
        at[(2 * t + 1) * kUnitRows] = odd;
      }
    }
  }
}

// One warp adds the partial sums of a unit in order and writes the outputs.
template <int ROWS>
__device__ __forceinline__ void finish_unit(const StreamArgs& a, const float* sums, int unit, int lane, float factor) {
  const int outputs = static_cast<int>(a.shape.out_features);
  int column = unit * kUnitRows + lane;
  bool valid = column < outputs;
  if (a.shape.gate != 0) {
    const int inside = unit * 16 + (lane & 15);
    valid = inside < outputs / 2;
    column = lane < 16 ? inside : outputs / 2 + inside;
  }
  if (a.fuse_gate != 0) valid = valid && lane < 16;
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kGemvWarps; ++warp) sum += sums[(warp * ROWS + row) * kUnitRows + lane];
    sum *= factor;
    if (a.fuse_gate != 0) {
      const float up = __shfl_down_sync(~0u, sum, 16);
      sum = gelu_tanh(sum) * up;
    }
    if (!valid || row >= a.rows) continue;
    const long long at = static_cast<long long>(row) * a.y_stride + column;
    if (a.output_f32 != 0) {
      static_cast<float*>(a.y)[at] = sum;
    } else {
      static_cast<__nv_bfloat16*>(a.y)[at] = __float2bfloat16_rn(sum);
    }
  }
}

// One thread copies the block's pages. Beside ring space it waits for copies before: with more than a few under way,
// what the launch before reads on this multiprocessor comes late.
__device__ __forceinline__ void gemv_produce(const StreamArgs& a, const GemvMemory& m) {
  GemvCopies copies(a);
  const int pages = unit_pages(a);
  int slot = 0;
  std::uint32_t parity = 1;
  int started = 0;
  int arrived = 0;
  int arrived_slot = 0;
  std::uint32_t arrived_parity = 0;
  while (copies.left > 0) {
    barrier_wait(m.empty + 8 * slot, parity);
    const int most = min(a.slots, started < a.slots ? a.first_copies : a.copies);
    while (arrived + most <= started) {
      barrier_wait(m.full + 8 * arrived_slot, arrived_parity);
      ++arrived;
      if (++arrived_slot == a.slots) {
        arrived_slot = 0;
        arrived_parity ^= 1;
      }
    }
    copies.start(a, m, slot);
    copies.next(a, pages);
    ++started;
    if (++slot == a.slots) {
      slot = 0;
      parity ^= 1;
    }
  }
}

// All units of the block: while a chunk is multiplied, the next is on its way from shared memory. What is left of a
// unit is the sum over the warps, which they take in turns.
template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS>
__device__ __forceinline__ void gemv_consume(const StreamArgs& a, const GemvMemory& m, int warp, int lane) {
  GemvReader<BITS, SEGMENTS, ASYMMETRIC> reader(a, m, warp, lane);
  GemvOperands<SEGMENTS> x;
  x.b[0] = x.b[1] = make_uint4(0, 0, 0, 0);
  int left = gemv_pages(a);
  int chunk = warp;
  int done = 0;  // units
  float acc[2][4] = {};
  GemvChunk<BITS, SEGMENTS> even;
  GemvChunk<BITS, SEGMENTS> odd;
  const auto step = [&](const GemvChunk<BITS, SEGMENTS>& current, GemvChunk<BITS, SEGMENTS>& following) {
    const bool mine = chunk < a.shape.chunks;
    if (mine) load_operands<SEGMENTS, ROWS>(m, chunk, lane, x);
    if (left > 1) reader.next(a, m, lane, following);
    if (mine) multiply_chunk<BITS, SEGMENTS, ASYMMETRIC>(current, x, acc);
    --left;
    chunk += kGemvWarps;
    if (chunk - warp < a.shape.chunks) return;
    chunk = warp;
    const int depth = done % kGemvDepth;
    float* sums = m.sums + depth * (gemv_sum_bytes(ROWS) / 4 / kGemvDepth);
    put_sums<ROWS>(acc, sums + warp * ROWS * kUnitRows, lane);
    if (warp == done % kGemvWarps) {
      named_sync(1 + depth, kGemvConsumers);
      finish_unit<ROWS>(a, sums, static_cast<int>(blockIdx.x) + done * a.blocks, lane, *m.factor);
    } else {
      named_arrive(1 + depth, kGemvConsumers);
    }
    ++done;
#pragma unroll
    for (int i = 0; i < 8; ++i) acc[i >> 2][i & 3] = 0.0f;
  };
  reader.next(a, m, lane, even);
#pragma unroll 1
  while (true) {
    step(even, odd);
    if (left == 0) break;
    step(odd, even);
    if (left == 0) break;
  }
}

template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS, bool NORM>
__global__ void __launch_bounds__(kGemvThreads, 2) gemv_kernel(const __grid_constant__ StreamArgs a) {
  const GemvMemory m = gemv_memory<ROWS>(block_memory_128, a);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  let_successor_begin();
  if (blockIdx.x >= a.blocks) {  // keeps its place on a multiprocessor, so that the others get one each
    wait_for_predecessor();
    return;
  }
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < a.slots; ++slot) {
      barrier_init(m.full + 8 * slot, 1);
      barrier_init(m.empty + 8 * slot, kGemvWarps);
    }
    barrier_init_fence();
  }
  if (threadIdx.x == 32) *m.factor = *reinterpret_cast<const float*>(a.packed);
  __syncthreads();
  if (warp == kGemvWarps) {
    if (lane == 0) gemv_produce(a, m);
    return;
  }
  if constexpr (NORM) {
    prepare_normalized<SEGMENTS, ROWS>(a, m, warp, lane);
  } else {
    prepare_inputs<SEGMENTS, ROWS>(a, m, warp, lane);
  }
  __syncwarp();
  gemv_consume<BITS, SEGMENTS, ASYMMETRIC, ROWS>(a, m, warp, lane);
}

using GemvKernel = void (*)(StreamArgs);

template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS>
GemvKernel gemv_kernel_of(bool norm) {
  if constexpr (ROWS == 1) {  // more rows without a norm are those of split.cuh
    if (!norm) return gemv_kernel<BITS, SEGMENTS, ASYMMETRIC, ROWS, false>;
  }
  return gemv_kernel<BITS, SEGMENTS, ASYMMETRIC, ROWS, true>;
}

template <int BITS, bool ASYMMETRIC, int ROWS>
GemvKernel gemv_kernel_of(const Rows32& shape, bool norm) {
  if (shape.segments == 1) return gemv_kernel_of<BITS, 1, ASYMMETRIC, ROWS>(norm);
  if (shape.segments == 2) return gemv_kernel_of<BITS, 2, ASYMMETRIC, ROWS>(norm);
  return gemv_kernel_of<BITS, 4, ASYMMETRIC, ROWS>(norm);
}

template <int ROWS>
GemvKernel gemv_kernel_of(const Rows32& shape, bool norm) {
  if (shape.bits == 8) return gemv_kernel_of<8, false, ROWS>(shape, norm);
  return shape.asymmetric != 0 ? gemv_kernel_of<4, true, ROWS>(shape, norm)
                               : gemv_kernel_of<4, false, ROWS>(shape, norm);
}

GemvKernel gemv_kernel_1(const Rows32& shape, bool norm);
GemvKernel gemv_kernel_2(const Rows32& shape, bool norm);

}  // namespace facet::linear
