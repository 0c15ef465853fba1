// Up to 4 rows: a block streams units of 32 rows of W through a ring in shared memory.
//
// Activations are exact or nearly so in fixed point: within a segment (the inputs under one scale) every value is
// rounded to a multiple of 2^-22 (1 or 2 rows) or 2^-15 (4 rows) of a power of two at or above the largest, and cut into
// signed 8-bit digits. Each digit of each row is a column of the B operand of mma.m16n8k32, whose A operand takes codes
// as they are: two masks give 8 weights. Sums are exact in int32; they start at the bits of 1.5 * 2^23, so they are
// floats too, and one multiply-add with the digit's value brings a sum to scale and takes away zero points.
//
// Eight warps split the inputs: chunk c of a unit belongs to warp c % 8, so a warp quantizes the inputs that it needs
// itself, and nothing waits for other warps but the sum of the eight partial results, which warps take in turns.
#pragma once

#include "quant_gptq/cuda/device/ptx.cuh"
#include "quant_gptq/cuda/w4a16_stream/stream.h"

namespace facet::linear {

inline constexpr int kGemvWarps = 8;
inline constexpr int kGemvThreads = (kGemvWarps + 1) * 32;
inline constexpr int kGemvConsumers = kGemvWarps * 32;
inline constexpr int kGemvMaxSlots = 16;
inline constexpr int kGemvDepth = 4;    // units whose partial sums are in flight
inline constexpr int kGemvBarrier = 8;  // named barrier of all consumers; 1..kGemvDepth are of the partial sums
inline constexpr int kGemvNormChunks = kGemvMaxNormInputs / kChunkInputs / kGemvWarps;
inline constexpr int kMagicBits = 0x4b400000;
inline constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23

// ROWS: 1, 2 or 4.
template <int ROWS>
struct GemvColumns {
  static constexpr int kDigits = ROWS <= 2 ? 3 : 2;
  static constexpr int kUsed = ROWS * kDigits;            // columns: digit * ROWS + row
  static constexpr int kStored = kUsed + kUsed % 2;       // a lane reads columns in pairs
};

template <int ROWS>
__host__ __device__ constexpr int gemv_digit_bytes() {
  return GemvColumns<ROWS>::kUsed * kChunkInputs;
}
template <int ROWS>
__host__ __device__ constexpr int gemv_column_bytes(int segments) {
  return GemvColumns<ROWS>::kStored * segments * 16;
}
__host__ __device__ constexpr int gemv_sum_bytes(int rows) {
  return kGemvDepth * kGemvWarps * rows * kUnitRows * 4;
}

// Sum or largest over the lanes of a segment.
template <int SEGMENTS>
__device__ __forceinline__ int segment_sum(int value) {
  if constexpr (SEGMENTS == 1) {
    return __reduce_add_sync(~0u, value);
  } else {
#pragma unroll
    for (int offset = 16 / SEGMENTS; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
    return value;
  }
}
template <int SEGMENTS>
__device__ __forceinline__ unsigned segment_max(unsigned value) {
  if constexpr (SEGMENTS == 1) {
    return __reduce_max_sync(~0u, value);
  } else {
#pragma unroll
    for (int offset = 16 / SEGMENTS; offset > 0; offset /= 2)
      value = max(value, __shfl_xor_sync(~0u, value, offset));
    return value;
  }
}

// Inputs of lane (s, t) of a chunk: 16s + {2t, 2t+1, 2t+8, 2t+9}.
__device__ __forceinline__ int lane_input(int chunk, int lane) {
  return chunk * kChunkInputs + (lane >> 2) * 16 + (lane & 3) * 2;
}

struct Values4 {
  float v[4];
};

// `row` points to a row of bf16; `pairs` says that its pairs are 4-byte aligned.
__device__ __forceinline__ Values4 load_bf16(const __nv_bfloat16* row, int first, int inputs, bool pairs) {
  Values4 values;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int k = first + 8 * half;
    std::uint32_t pair = 0;
    if (pairs && k + 1 < inputs) {
      pair = load_u32(row + k);
    } else {
      const auto* bits = reinterpret_cast<const volatile unsigned short*>(row);
      if (k < inputs) pair = bits[k];
      if (k + 1 < inputs) pair |= static_cast<std::uint32_t>(bits[k + 1]) << 16;
    }
    values.v[2 * half] = low_bf16(pair);
    values.v[2 * half + 1] = high_bf16(pair);
  }
  return values;
}
__device__ __forceinline__ Values4 load_f32(const float* row, int first, int inputs, bool pairs) {
  Values4 values;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int k = first + 8 * half;
    float2 pair = make_float2(0.0f, 0.0f);
    if (pairs && k + 1 < inputs) {
      pair = load_float2(row + k);
    } else {
      const volatile float* plain = row;
      if (k < inputs) pair.x = plain[k];
      if (k + 1 < inputs) pair.y = plain[k + 1];
    }
    values.v[2 * half] = pair.x;
    values.v[2 * half + 1] = pair.y;
  }
  return values;
}
__device__ __forceinline__ void store_f32(float* row, int first, int inputs, const Values4& values) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int k = first + 8 * (i >> 1) + (i & 1);
    if (k < inputs) row[k] = values.v[i];
  }
}

// Digits of one chunk of one row to shared memory, with what turns sums of a column into numbers.
template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS>
__device__ __forceinline__ void quantize_chunk(const Values4& x, int chunk, int row, int lane, std::uint32_t* digits,
                                               float4* columns) {
  using Columns = GemvColumns<ROWS>;
  constexpr int kDigits = Columns::kDigits;
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = max(largest, __float_as_uint(x.v[i]) & 0x7fffffffu);
  largest = segment_max<SEGMENTS>(largest);
  // Exponent of the largest; that of the step is kBits - 1 below. NaN and infinity pass on as NaN.
  constexpr unsigned kBits = kDigits == 3 ? 22 : 15;
  const unsigned exponent = max(largest >> 23, kBits + 1);
  const bool finite = exponent < 255;
  const float scale = __uint_as_float((253 + kBits - exponent) << 23);
  const float step = finite ? __uint_as_float((exponent - (kBits - 1)) << 23) : __uint_as_float(0x7fc00000u);
  constexpr unsigned kBias = kDigits == 3 ? 0x808080u : 0x8080u;
  unsigned fixed[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float scaled = x.v[i] * scale;
    if constexpr (kDigits == 2) scaled = fminf(scaled, 32639.0f);  // the largest with digits -128..127
    fixed[i] = __float_as_uint(scaled + kMagic) - static_cast<unsigned>(kMagicBits) + kBias;
  }
  const int s = lane >> 2;
  const int t = lane & 3;
  std::uint32_t* target = digits + chunk * (Columns::kUsed * 32) + (s >> 2) * (Columns::kUsed * 16) + t * 4 + (s & 3);
  int sums[kDigits];
#pragma unroll
  for (int digit = 0; digit < kDigits; ++digit) {
    // Byte `digit` of inputs 2t, 2t+8, 2t+1, 2t+9.
    const unsigned select = digit | (4 + digit) << 4;
    const unsigned word = __byte_perm(__byte_perm(fixed[0], fixed[2], select), __byte_perm(fixed[1], fixed[3], select),
                                      0x5410) ^
                          0x80808080u;
    target[(digit * ROWS + row) * 16] = word;
    sums[digit] = segment_sum<SEGMENTS>(__dp4a(static_cast<int>(word), 0x01010101, 0));
  }
  if ((lane & (32 / SEGMENTS - 1)) != 0) return;
  float4* column = columns + (chunk * SEGMENTS + lane / (32 / SEGMENTS)) * Columns::kStored;
  float value = step;
#pragma unroll
  for (int digit = 0; digit < kDigits; ++digit, value *= 256.0f) {
    const float sum = static_cast<float>(sums[digit]);
    float4 made = make_float4(value, -value * kMagic, value * sum, 0.0f);
    if constexpr (!ASYMMETRIC) {
      // Rows g carry codes, rows g+8 of int4 codes times 16; the means are 8 and 128.
      made.y = -value * (kMagic + (BITS == 4 ? 8.0f : 128.0f) * sum);
      made.z = -value * (kMagic + 128.0f * sum);
    }
    column[digit * ROWS + row] = made;
  }
}

// Sum of squares over the row: the warp's part goes to `partial`, every warp reads all of them.
__device__ __forceinline__ void put_square_sum(float sum, float* partial, int warp, int lane) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (lane == 0) partial[warp] = sum;
}
__device__ __forceinline__ float inverse_norm(const float* partial, int inputs, float epsilon) {
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kGemvWarps; ++warp) sum += partial[warp];
  return rsqrtf(sum / static_cast<float>(inputs) + epsilon);
}

// The fused residual norm: fills x with the normalised rows of this warp's chunks and writes this block's share of
// hidden_out.
template <int ROWS>
__device__ __forceinline__ void normalized_rows(const StreamArgs& a, int warp, int lane, float* partial,
                                                Values4 (&x)[ROWS][kGemvNormChunks]) {
  const StreamResidual& residual = a.residual;
  const int inputs = static_cast<int>(a.shape.in_features);
  const bool pairs = inputs % 2 == 0;
  const bool updated = residual.update != nullptr;
  Values4 update[ROWS][kGemvNormChunks];
  Values4 post[kGemvNormChunks];
  Values4 next[kGemvNormChunks];
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
#pragma unroll
    for (int i = 0; i < kGemvNormChunks; ++i) {
      const int first = lane_input(warp + i * kGemvWarps, lane);
      const int known = row < a.rows ? inputs : 0;
      x[row][i] = load_f32(residual.hidden + static_cast<long long>(row) * inputs, first, known, pairs);
      if (updated)
        update[row][i] = load_bf16(static_cast<const __nv_bfloat16*>(residual.update) +
                                       static_cast<long long>(row) * inputs,
                                   first, known, pairs);
    }
  }
#pragma unroll
  for (int i = 0; i < kGemvNormChunks; ++i) {
    const int first = lane_input(warp + i * kGemvWarps, lane);
    next[i] = load_f32(residual.next_norm, first, inputs, pairs);
    if (updated) post[i] = load_f32(residual.post_norm, first, inputs, pairs);
  }
  if (updated) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kGemvNormChunks; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum += update[row][i].v[e] * update[row][i].v[e];
      }
      put_square_sum(sum, partial + row * kGemvWarps, warp, lane);
    }
    named_sync(kGemvBarrier, kGemvConsumers);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      const float inverse = inverse_norm(partial + row * kGemvWarps, inputs, residual.epsilon);
#pragma unroll
      for (int i = 0; i < kGemvNormChunks; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[row][i].v[e] = (x[row][i].v[e] + update[row][i].v[e] * inverse * post[i].v[e]) * residual.scale;
      }
    }
  }
  float* second = partial + ROWS * kGemvWarps;
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kGemvNormChunks; ++i) {
      const int chunk = warp + i * kGemvWarps;
#pragma unroll
      for (int e = 0; e < 4; ++e) sum += x[row][i].v[e] * x[row][i].v[e];
      // Blocks share the work of writing the new residual stream.
      if (residual.hidden_out != nullptr && row < a.rows && chunk % gridDim.x == blockIdx.x)
        store_f32(residual.hidden_out + static_cast<long long>(row) * inputs, lane_input(chunk, lane), inputs,
                  x[row][i]);
    }
    put_square_sum(sum, second + row * kGemvWarps, warp, lane);
  }
  named_sync(kGemvBarrier, kGemvConsumers);
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    const float inverse = inverse_norm(second + row * kGemvWarps, inputs, residual.epsilon);
#pragma unroll
    for (int i = 0; i < kGemvNormChunks; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[row][i].v[e] *= inverse * next[i].v[e];
    }
  }
}

// Products of one tile of a chunk with all columns, added to acc (rows g, g+8 by columns 2t, 2t+1).
template <int BITS, int SEGMENTS, bool ASYMMETRIC>
__device__ __forceinline__ void multiply_tile(float (&acc)[4], const uint4* words, const uint4 (&b)[2],
                                              const float4 (&columns)[SEGMENTS][2], const float2 (&scales)[SEGMENTS],
                                              const float2 (&zeros)[SEGMENTS]) {
  const int magic[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
  const std::uint32_t bw[8] = {b[0].x, b[0].y, b[0].z, b[0].w, b[1].x, b[1].y, b[1].z, b[1].w};
  int sums[4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {  // 32 inputs each
    constexpr int kSteps = 4 / SEGMENTS;
    int before[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) before[e] = step % kSteps == 0 ? magic[e] : sums[e];
    if constexpr (BITS == 4) {
      const uint4 quad = words[step / 2];
      const std::uint32_t low = step % 2 == 0 ? quad.x : quad.z;
      const std::uint32_t high = step % 2 == 0 ? quad.y : quad.w;
      mma_u8s8(sums, low & 0x0f0f0f0fu, low & 0xf0f0f0f0u, high & 0x0f0f0f0fu, high & 0xf0f0f0f0u, bw[2 * step],
               bw[2 * step + 1], before);
    } else {
      const uint4 quad = words[step];
      mma_u8s8(sums, quad.x, quad.y, quad.z, quad.w, bw[2 * step], bw[2 * step + 1], before);
    }
    if (step % kSteps != kSteps - 1) continue;
    const int segment = step / kSteps;
    const float4 c0 = columns[segment][0];
    const float4 c1 = columns[segment][1];
    if constexpr (ASYMMETRIC) {
      const float z0 = zeros[segment].x;
      const float z8 = zeros[segment].y;
      acc[0] += scales[segment].x * fmaf(-z0, c0.z, fmaf(__int_as_float(sums[0]), c0.x, c0.y));
      acc[1] += scales[segment].x * fmaf(-z0, c1.z, fmaf(__int_as_float(sums[1]), c1.x, c1.y));
      acc[2] += scales[segment].y * fmaf(-z8, c0.z, fmaf(__int_as_float(sums[2]), c0.x, c0.y));
      acc[3] += scales[segment].y * fmaf(-z8, c1.z, fmaf(__int_as_float(sums[3]), c1.x, c1.y));
    } else {
      acc[0] += scales[segment].x * fmaf(__int_as_float(sums[0]), c0.x, c0.y);
      acc[1] += scales[segment].x * fmaf(__int_as_float(sums[1]), c1.x, c1.y);
      acc[2] += scales[segment].y * fmaf(__int_as_float(sums[2]), c0.x, c0.z);
      acc[3] += scales[segment].y * fmaf(__int_as_float(sums[3]), c1.x, c1.z);
    }
  }
}

}  // namespace facet::linear
