// The kernel of gemv.cuh and its launch; each row count is compiled in a file of its own.
#pragma once

#include <algorithm>

#include "quant_gptq/cuda/w4a16_stream/gemv_inputs.cuh"
#include "quant_gptq/cuda/w4a16_stream/gemv_multiply.cuh"

namespace facet::linear {

// One thread copies the block's units page by page, waiting for nothing but ring space.
__device__ __forceinline__ void gemv_produce(const StreamArgs& a, const GemvMemory& m) {
  const std::uint64_t policy = evict_first_policy();
  const std::uint32_t ring = shared_address(m.ring);
  const int page_bytes = kGemvWarps * a.shape.chunk_bytes;
  const int unit_bytes = a.shape.chunks * a.shape.chunk_bytes;
  int slot = 0;
  std::uint32_t parity = 1;
  for (int unit = blockIdx.x; unit < a.shape.units; unit += a.blocks) {
    const unsigned char* source = a.packed + kHeaderBytes + static_cast<long long>(unit) * unit_bytes;
    for (int done = 0; done < unit_bytes; done += page_bytes) {
      const int bytes = min(page_bytes, unit_bytes - done);
      barrier_wait(m.empty + 8 * slot, parity);
      barrier_expect(m.full + 8 * slot, bytes);
      bulk_copy(ring + slot * page_bytes, source + done, bytes, m.full + 8 * slot, policy);
      if (++slot == a.slots) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
}

// This warp's products of a unit to its place among the partial sums.
template <int ROWS>
__device__ __forceinline__ void put_sums(const float (&acc)[2][4], float* target, int lane) {
  const int g = lane >> 2;
  const int t = lane & 3;
  float p[4][ROWS == 1 ? 1 : 2];  // rows g, g+8, 16+g, 24+g
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float even = acc[j >> 1][2 * (j & 1)];
    const float odd = acc[j >> 1][2 * (j & 1) + 1];
    if constexpr (ROWS == 1) {
      p[j][0] = even + odd;  // digits 0, 1 and, in the next lane, 2
      p[j][0] += __shfl_xor_sync(~0u, p[j][0], 1);
    } else {
      p[j][0] = even;
      p[j][1] = odd;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (ROWS == 2) p[j][r] += __shfl_xor_sync(~0u, p[j][r], 1);
        p[j][r] += __shfl_xor_sync(~0u, p[j][r], 2);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int at = (j >> 1) * 16 + (j & 1) * 8 + g;
    if constexpr (ROWS == 1) {
      if (t == j >> 1) target[at] = p[j][0];
    } else if constexpr (ROWS == 2) {
      if (t == j) {
        target[at] = p[j][0];
        target[kUnitRows + at] = p[j][1];
      }
    } else if (t < 2) {  // rows 2t, 2t+1
      target[2 * t * kUnitRows + at] = p[j][0];
      target[(2 * t + 1) * kUnitRows + at] = p[j][1];
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

// Units are done; what is left of each is the sum over the warps, which they take in turns.
template <int ROWS>
struct GemvSums {
  int depth = 0;
  int turn = 0;
  __device__ __forceinline__ void put(const StreamArgs& a, const GemvMemory& m, const float (&acc)[2][4], int unit,
                                      int warp, int lane, float factor) {
    float* sums = m.sums + depth * (gemv_sum_bytes(ROWS) / 4 / kGemvDepth);
    put_sums<ROWS>(acc, sums + warp * ROWS * kUnitRows, lane);
    if (warp == turn) {
      named_sync(1 + depth, kGemvConsumers);
      finish_unit<ROWS>(a, sums, unit, lane, factor);
    } else {
      named_arrive(1 + depth, kGemvConsumers);
    }
    depth = depth + 1 == kGemvDepth ? 0 : depth + 1;
    turn = turn + 1 == kGemvWarps ? 0 : turn + 1;
  }
};

// All units of the block: while a chunk is multiplied, the next is on its way from shared memory.
template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS>
__device__ __forceinline__ void gemv_consume(const StreamArgs& a, const GemvMemory& m, int warp, int lane,
                                             float factor) {
  GemvReader<BITS, SEGMENTS, ASYMMETRIC> reader(a, m, warp, lane);
  const GemvActivations<SEGMENTS, ROWS> x(m, lane);
  const int chunks = a.shape.chunks;
  int unit = blockIdx.x;
  int left = (a.shape.units - unit + a.blocks - 1) / a.blocks * ((chunks + kGemvWarps - 1) / kGemvWarps);
  int chunk = warp;
  float acc[2][4] = {};
  GemvSums<ROWS> sums;
  GemvChunk<BITS, SEGMENTS> even;
  GemvChunk<BITS, SEGMENTS> odd;
  const auto step = [&](const GemvChunk<BITS, SEGMENTS>& current, GemvChunk<BITS, SEGMENTS>& following) {
    if (left > 1) reader.next(following);
    if (chunk < chunks) multiply_chunk<BITS, SEGMENTS, ASYMMETRIC, ROWS>(current, x, chunk, acc);
    --left;
    chunk += kGemvWarps;
    if (chunk - warp < chunks) return;
    chunk = warp;
    sums.put(a, m, acc, unit, warp, lane, factor);
    unit += a.blocks;
#pragma unroll
    for (int i = 0; i < 8; ++i) acc[i >> 2][i & 3] = 0.0f;
  };
  reader.next(even);
#pragma unroll 1
  while (true) {
    step(even, odd);
    if (left == 0) break;
    step(odd, even);
    if (left == 0) break;
  }
}

template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS, bool NORM>
__global__ void __launch_bounds__(kGemvThreads, ROWS == 4 ? 1 : 2) gemv_kernel(const __grid_constant__ StreamArgs a) {
  extern __shared__ __align__(128) unsigned char base[];
  const GemvMemory m = gemv_memory<ROWS>(base, a);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  launch_dependents();
  if (blockIdx.x >= a.blocks) {  // keeps its place on a multiprocessor, so that the others get one each
    wait_for_inputs();
    return;
  }
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < a.slots; ++slot) {
      barrier_init(m.full + 8 * slot, 1);
      barrier_init(m.empty + 8 * slot, kGemvWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (warp == kGemvWarps) {
    if (lane == 0) gemv_produce(a, m);
    return;
  }
  using Columns = GemvColumns<ROWS>;
  if constexpr (Columns::kStored != Columns::kUsed) {  // the column without a digit counts nothing
    if (lane < SEGMENTS) {
      for (int chunk = warp; chunk < a.shape.chunks; chunk += kGemvWarps)
        m.columns[(chunk * SEGMENTS + lane + 1) * Columns::kStored - 1] = make_float4(0, 0, 0, 0);
    }
  }
  if (threadIdx.x < kGemvZeroBytes / 4) reinterpret_cast<std::uint32_t*>(m.zeros)[threadIdx.x] = 0;
  const float factor = *reinterpret_cast<const float*>(a.packed);
  if constexpr (NORM) {
    const Lane16 at(0, warp, lane);
    NormWeights norms;
    load_norms(a, at, norms);
    named_sync(kGemvBarrier, kGemvConsumers);  // the zeros are there
    wait_for_inputs();
    float x[ROWS][16];
    normalized_rows<ROWS>(a, at, warp, lane, norms, m.squares, x);
#pragma unroll
    for (int row = 0; row < ROWS; ++row)
      quantize16<BITS, SEGMENTS, ASYMMETRIC, ROWS>(x[row], at, a.shape.chunks, row, m.digits, m.columns);
  } else {
    named_sync(kGemvBarrier, kGemvConsumers);
    wait_for_inputs();
    quantize_inputs<BITS, SEGMENTS, ASYMMETRIC, ROWS>(a, m, warp, lane);
  }
  __syncwarp();
  gemv_consume<BITS, SEGMENTS, ASYMMETRIC, ROWS>(a, m, warp, lane, factor);
}

using GemvKernel = void (*)(StreamArgs);

template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS>
GemvKernel gemv_kernel_of(bool norm) {
  return norm ? gemv_kernel<BITS, SEGMENTS, ASYMMETRIC, ROWS, true>
              : gemv_kernel<BITS, SEGMENTS, ASYMMETRIC, ROWS, false>;
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
GemvKernel gemv_kernel_4(const Rows32& shape, bool norm);

}  // namespace facet::linear
