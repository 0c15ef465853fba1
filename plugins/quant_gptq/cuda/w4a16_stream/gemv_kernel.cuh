// The kernel of gemv.cuh and its launch; each row count is compiled in a file of its own.
#pragma once

#include <algorithm>

#include "quant_gptq/cuda/w4a16_stream/gemv.cuh"

namespace facet::linear {

// Where things lie in a block's shared memory.
struct GemvMemory {
  std::uint32_t full;   // barriers of slots that are filled
  std::uint32_t empty;  // and of those that are read
  unsigned char* ring;
  std::uint32_t* digits;
  float4* columns;
  float* sums;
  float* squares;
};

template <int ROWS>
__device__ __forceinline__ GemvMemory gemv_memory(unsigned char* base, const StreamArgs& a) {
  GemvMemory m;
  m.full = shared_address(base);
  m.empty = m.full + 8 * kGemvMaxSlots;
  m.ring = base + 16 * kGemvMaxSlots;
  unsigned char* at = m.ring + a.slots * kGemvWarps * a.shape.chunk_bytes;
  m.digits = reinterpret_cast<std::uint32_t*>(at);
  at += a.shape.chunks * gemv_digit_bytes<ROWS>();
  m.columns = reinterpret_cast<float4*>(at);
  at += a.shape.chunks * gemv_column_bytes<ROWS>(a.shape.segments);
  m.sums = reinterpret_cast<float*>(at);
  m.squares = m.sums + gemv_sum_bytes(ROWS) / 4;
  return m;
}

// One thread copies the block's units page by page, waiting for nothing but ring space.
__device__ __forceinline__ void gemv_produce(const StreamArgs& a, const GemvMemory& m) {
  const std::uint64_t policy = evict_first_policy();
  const std::uint32_t ring = shared_address(m.ring);
  const int page_bytes = kGemvWarps * a.shape.chunk_bytes;
  const int unit_bytes = a.shape.chunks * a.shape.chunk_bytes;
  int slot = 0;
  std::uint32_t parity = 1;
  for (int unit = blockIdx.x; unit < a.shape.units; unit += gridDim.x) {
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

// Digits of this warp's chunks of all rows.
template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS, bool NORM>
__device__ __forceinline__ void gemv_inputs(const StreamArgs& a, const GemvMemory& m, int warp, int lane) {
  const int chunks = a.shape.chunks;
  if constexpr (NORM) {
    Values4 x[ROWS][kGemvNormChunks];
    normalized_rows<ROWS>(a, warp, lane, m.squares, x);
#pragma unroll
    for (int i = 0; i < kGemvNormChunks; ++i) {
      const int chunk = warp + i * kGemvWarps;
      if (chunk >= chunks) break;
#pragma unroll
      for (int row = 0; row < ROWS; ++row)
        quantize_chunk<BITS, SEGMENTS, ASYMMETRIC, ROWS>(x[row][i], chunk, row, lane, m.digits, m.columns);
    }
  } else {
    const int inputs = static_cast<int>(a.shape.in_features);
    const auto* x = static_cast<const __nv_bfloat16*>(a.x);
    const bool pairs = (reinterpret_cast<unsigned long long>(x) & 3) == 0 && a.x_stride % 2 == 0;
    constexpr int kBatch = ROWS == 1 ? 4 : ROWS == 2 ? 2 : 1;  // chunks whose loads are in flight together
    for (int first = warp; first < chunks; first += kBatch * kGemvWarps) {
      Values4 v[kBatch][ROWS];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
          v[i][row] = load_bf16(x + row * a.x_stride, lane_input(first + i * kGemvWarps, lane),
                                row < a.rows ? inputs : 0, pairs);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i * kGemvWarps >= chunks) break;
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
          quantize_chunk<BITS, SEGMENTS, ASYMMETRIC, ROWS>(v[i][row], first + i * kGemvWarps, row, lane, m.digits,
                                                           m.columns);
      }
    }
  }
  __syncwarp();
}

// This warp's chunk of the page at `page`, added to acc; arrives at `empty` as soon as the page is in registers.
template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS>
__device__ __forceinline__ void gemv_chunk(const unsigned char* data, std::uint32_t empty, int chunk, int lane,
                                           const GemvMemory& m, float (&acc)[2][4]) {
  using Columns = GemvColumns<ROWS>;
  constexpr int kQuads = BITS / 2;  // 16-byte loads of a tile
  constexpr int kTileBytes = kQuads * 512;
  const int g = lane >> 2;
  const int t = lane & 3;
  uint4 words[2][kQuads];
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      words[tile][i] = *reinterpret_cast<const uint4*>(data + tile * kTileBytes + i * 512 + lane * 16);
  }
  uint2 packed_scales[SEGMENTS];
  std::uint32_t packed_zeros[SEGMENTS];
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
    packed_scales[segment] = *reinterpret_cast<const uint2*>(data + 2 * kTileBytes + segment * 64 + g * 8);
    packed_zeros[segment] = 0;
    if constexpr (ASYMMETRIC)
      packed_zeros[segment] =
          *reinterpret_cast<const std::uint32_t*>(data + 2 * kTileBytes + SEGMENTS * 64 + segment * 32 + g * 4);
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(empty);

  uint4 b[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
  if (g < Columns::kUsed) {
    const auto* digits = reinterpret_cast<const uint4*>(m.digits) + chunk * (Columns::kUsed * 8);
    b[0] = digits[lane];
    b[1] = digits[Columns::kUsed * 4 + lane];
  }
  float4 columns[SEGMENTS][2];
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
    columns[segment][0] = columns[segment][1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (2 * t < Columns::kStored) {
      const float4* column = m.columns + (chunk * SEGMENTS + segment) * Columns::kStored + 2 * t;
      columns[segment][0] = column[0];
      columns[segment][1] = column[1];
    }
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    float2 scales[SEGMENTS];
    float2 zeros[SEGMENTS];
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      const std::uint32_t pair = tile == 0 ? packed_scales[segment].x : packed_scales[segment].y;
      scales[segment] = __half22float2(*reinterpret_cast<const __half2*>(&pair));
      zeros[segment] = make_float2(static_cast<float>((packed_zeros[segment] >> (16 * tile)) & 255u),
                                   static_cast<float>((packed_zeros[segment] >> (16 * tile + 8)) & 255u));
      if constexpr (BITS == 4) {  // rows g+8 come times 16
        scales[segment].y *= 0.0625f;
        zeros[segment].y *= 16.0f;
      }
    }
    multiply_tile<BITS, SEGMENTS, ASYMMETRIC>(acc[tile], words[tile], b, columns, scales, zeros);
  }
}

template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS, bool NORM>
__global__ void __launch_bounds__(kGemvThreads, ROWS == 4 ? 1 : 2) gemv_kernel(const __grid_constant__ StreamArgs a) {
  extern __shared__ __align__(128) unsigned char base[];
  const GemvMemory m = gemv_memory<ROWS>(base, a);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  launch_dependents();
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
  if constexpr (GemvColumns<ROWS>::kStored != GemvColumns<ROWS>::kUsed) {  // the column without a digit counts nothing
    if (lane < SEGMENTS) {
      for (int chunk = warp; chunk < a.shape.chunks; chunk += kGemvWarps)
        m.columns[(chunk * SEGMENTS + lane + 1) * GemvColumns<ROWS>::kStored - 1] = make_float4(0, 0, 0, 0);
    }
  }
  const float factor = *reinterpret_cast<const float*>(a.packed);
  wait_for_inputs();
  gemv_inputs<BITS, SEGMENTS, ASYMMETRIC, ROWS, NORM>(a, m, warp, lane);

  const int page_bytes = kGemvWarps * a.shape.chunk_bytes;
  int slot = 0;
  std::uint32_t parity = 0;
  int depth = 0;
  int turn = 0;
#pragma unroll 1
  for (int unit = blockIdx.x; unit < a.shape.units; unit += gridDim.x) {
    float acc[2][4] = {};
#pragma unroll 1
    for (int chunk = warp; chunk - warp < a.shape.chunks; chunk += kGemvWarps) {
      barrier_wait(m.full + 8 * slot, parity);
      if (chunk < a.shape.chunks) {
        gemv_chunk<BITS, SEGMENTS, ASYMMETRIC, ROWS>(m.ring + slot * page_bytes + warp * a.shape.chunk_bytes,
                                                     m.empty + 8 * slot, chunk, lane, m, acc);
      } else if (lane == 0) {
        barrier_arrive(m.empty + 8 * slot);
      }
      if (++slot == a.slots) {
        slot = 0;
        parity ^= 1;
      }
    }
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
