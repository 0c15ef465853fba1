// Activations of gemv.cuh: read, normalised where that is fused, and cut into digits.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/gemv.cuh"

namespace facet::linear {

// Quantizing goes in rounds: a warp takes four of its chunks at a time, eight lanes each, and lane s of the eight holds
// inputs 16s..16s+15, one k16 step.
inline constexpr int kGemvRoundChunks = 4;

struct Lane16 {
  int chunk;
  int step;
  __device__ __forceinline__ Lane16(int round, int warp, int lane)
      : chunk(warp + (round * kGemvRoundChunks + lane / 8) * kGemvWarps), step(lane % 8) {}
  __device__ __forceinline__ int first_input() const { return chunk * kChunkInputs + step * 16; }
};

// The lanes of a segment are neighbours, 8 / SEGMENTS of them.
template <int SEGMENTS>
__device__ __forceinline__ int segment_sum(int value) {
#pragma unroll
  for (int offset = 4 / SEGMENTS; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}
// The largest; NaN when there is one.
__device__ __forceinline__ float larger(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
template <int SEGMENTS>
__device__ __forceinline__ float segment_max(float value) {
#pragma unroll
  for (int offset = 4 / SEGMENTS; offset > 0; offset /= 2) value = larger(value, __shfl_xor_sync(~0u, value, offset));
  return value;
}

// 16 bf16 of a row as they lie in memory, so that many loads can be in flight.
struct Raw16 {
  uint4 half[2];
};

// `row` points to a row of bf16; `aligned` says that rows begin at multiples of 16 bytes.
__device__ __forceinline__ Raw16 load_bf16(const __nv_bfloat16* row, int first, int inputs, bool aligned) {
  Raw16 raw;
  raw.half[0] = raw.half[1] = make_uint4(0, 0, 0, 0);
  if (aligned && first + 16 <= inputs) {
    raw.half[0] = load_u128(row + first);
    raw.half[1] = load_u128(row + first + 8);
  } else if (first < inputs) {
    const auto* bits = reinterpret_cast<const volatile unsigned short*>(row);
    std::uint32_t pair[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int k = first + 2 * i;
      pair[i] = k < inputs ? bits[k] : 0u;
      if (k + 1 < inputs) pair[i] |= static_cast<std::uint32_t>(bits[k + 1]) << 16;
    }
    raw.half[0] = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    raw.half[1] = make_uint4(pair[4], pair[5], pair[6], pair[7]);
  }
  return raw;
}
__device__ __forceinline__ void to_float(const Raw16& raw, float (&v)[16]) {
  const std::uint32_t pair[8] = {raw.half[0].x, raw.half[0].y, raw.half[0].z, raw.half[0].w,
                                 raw.half[1].x, raw.half[1].y, raw.half[1].z, raw.half[1].w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[2 * i] = low_bf16(pair[i]);
    v[2 * i + 1] = high_bf16(pair[i]);
  }
}
__device__ __forceinline__ void load_f32(const float* row, int first, int inputs, bool aligned, float (&v)[16]) {
  if (aligned && first + 16 <= inputs) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 quad = load_u128(row + first + 4 * i);
      v[4 * i] = __uint_as_float(quad.x);
      v[4 * i + 1] = __uint_as_float(quad.y);
      v[4 * i + 2] = __uint_as_float(quad.z);
      v[4 * i + 3] = __uint_as_float(quad.w);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 16; ++i)
    v[i] = first + i < inputs ? *reinterpret_cast<const volatile float*>(row + first + i) : 0.0f;
}
__device__ __forceinline__ void store_f32(float* row, int first, int inputs, bool aligned, const float (&v)[16]) {
  if (aligned && first + 16 <= inputs) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<float4*>(row + first + 4 * i) = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (first + i < inputs) row[first + i] = v[i];
  }
}

// Digits of 16 inputs of one row to shared memory, with what turns sums of a column into numbers. Called by all lanes.
template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS>
__device__ __forceinline__ void quantize16(const float (&v)[16], const Lane16& at, int chunks, int row,
                                           std::uint32_t* digits, float4* columns) {
  using Columns = GemvColumns<ROWS>;
  constexpr int kDigits = Columns::kDigits;
  float largest = fabsf(v[0]);
#pragma unroll
  for (int i = 1; i < 16; ++i) largest = larger(largest, fabsf(v[i]));
  largest = segment_max<SEGMENTS>(largest);
  // Exponent of the largest; that of the step is kBits - 1 below. NaN and infinity pass on as NaN.
  constexpr unsigned kBits = kDigits == 3 ? 21 : 15;
  const unsigned exponent = max((__float_as_uint(largest) & 0x7fffffffu) >> 23, kBits + 1);
  const bool finite = exponent < 255;
  const float scale = __uint_as_float((253 + kBits - exponent) << 23);
  const float step = finite ? __uint_as_float((exponent - (kBits - 1)) << 23) : __uint_as_float(0x7fc00000u);
  // Adding 0x8080 makes the two low digits unsigned with an offset of 128, which flipping their top bits takes away.
  unsigned fixed[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float scaled = v[i] * scale;
    if constexpr (kDigits == 2) scaled = fminf(scaled, 32639.0f);  // the largest with digits -128..127
    fixed[i] = __float_as_uint(scaled + (kMagic + 32896.0f));
  }
  int sums[kDigits] = {};
  std::uint32_t* target =
      digits + at.chunk * gemv_chunk_words<ROWS>() + (at.step >> 2) * (Columns::kUsed * 16) + row * 16 + (at.step & 3);
#pragma unroll
  for (int t = 0; t < 4; ++t) {                                                 // inputs 2t, 2t+8, 2t+1, 2t+9
    const unsigned even = __byte_perm(fixed[2 * t], fixed[2 * t + 8], 0x5140);  // low digits, then second digits
    const unsigned odd = __byte_perm(fixed[2 * t + 1], fixed[2 * t + 9], 0x5140);
    unsigned words[3] = {__byte_perm(even, odd, 0x5410) ^ 0x80808080u, __byte_perm(even, odd, 0x7632) ^ 0x80808080u,
                         0u};
    if constexpr (kDigits == 3)  // the third digit stands above 0x40 of the float's bits
      words[2] = (__byte_perm(__byte_perm(fixed[2 * t], fixed[2 * t + 8], 0x0062),
                              __byte_perm(fixed[2 * t + 1], fixed[2 * t + 9], 0x0062), 0x5410) +
                  0x40404040u) ^
                 0x80808080u;
#pragma unroll
    for (int digit = 0; digit < kDigits; ++digit) {
      if (at.chunk < chunks) target[digit * (ROWS * 16) + t * 4] = words[digit];
      sums[digit] = __dp4a(static_cast<int>(words[digit]), 0x01010101, sums[digit]);
    }
  }
#pragma unroll
  for (int digit = 0; digit < kDigits; ++digit) sums[digit] = segment_sum<SEGMENTS>(sums[digit]);
  if (at.step % (8 / SEGMENTS) != 0 || at.chunk >= chunks) return;
  float4* column = columns + (at.chunk * SEGMENTS + at.step / (8 / SEGMENTS)) * Columns::kStored + row;
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
    column[digit * ROWS] = made;
  }
}

// Sum of squares over the row: the warp's part goes to `partial`, every warp reads all of them.
__device__ __forceinline__ void put_square_sum(const float (&v)[16], float* partial, int warp, int lane) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 16; ++i) sum += v[i] * v[i];
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

// Weights of the norms for this lane's inputs. They are constants like the packed weights, so a block reads them while
// it waits for its inputs.
struct NormWeights {
  float post[16];
  float next[16];
};

__device__ __forceinline__ bool aligned16(const void* pointer) {
  return (reinterpret_cast<unsigned long long>(pointer) & 15) == 0;
}

__device__ __forceinline__ void load_norms(const StreamArgs& a, const Lane16& at, NormWeights& norms) {
  const StreamResidual& residual = a.residual;
  const int inputs = static_cast<int>(a.shape.in_features);
  load_f32(residual.next_norm, at.first_input(), inputs, aligned16(residual.next_norm), norms.next);
  if (residual.update != nullptr)
    load_f32(residual.post_norm, at.first_input(), inputs, aligned16(residual.post_norm), norms.post);
}

// The fused residual norm: fills x with the normalised rows of this lane's inputs and writes this block's share of
// hidden_out.
template <int ROWS>
__device__ __forceinline__ void normalized_rows(const StreamArgs& a, const Lane16& at, int warp, int lane,
                                                const NormWeights& norms, float* partial, float (&x)[ROWS][16]) {
  const StreamResidual& residual = a.residual;
  const int inputs = static_cast<int>(a.shape.in_features);
  const int first = at.first_input();
  const bool updated = residual.update != nullptr;
  const bool aligned_f32 = inputs % 4 == 0 && aligned16(residual.hidden) && aligned16(residual.hidden_out);
  const bool aligned_bf16 = inputs % 8 == 0 && aligned16(residual.update);
  Raw16 update[ROWS];
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    const long long offset = static_cast<long long>(row) * inputs;
    const int known = row < a.rows ? inputs : 0;
    if (updated)
      update[row] = load_bf16(static_cast<const __nv_bfloat16*>(residual.update) + offset, first, known, aligned_bf16);
    load_f32(residual.hidden + offset, first, known, aligned_f32, x[row]);
  }
  if (updated) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      float value[16];
      to_float(update[row], value);
      put_square_sum(value, partial + row * kGemvWarps, warp, lane);
    }
    named_sync(kGemvBarrier, kGemvConsumers);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      const float inverse = inverse_norm(partial + row * kGemvWarps, inputs, residual.epsilon);
      float value[16];
      to_float(update[row], value);
#pragma unroll
      for (int i = 0; i < 16; ++i) x[row][i] = (x[row][i] + value[i] * inverse * norms.post[i]) * residual.scale;
    }
  }
  float* second = partial + ROWS * kGemvWarps;
#pragma unroll
  for (int row = 0; row < ROWS; ++row) put_square_sum(x[row], second + row * kGemvWarps, warp, lane);
  named_sync(kGemvBarrier, kGemvConsumers);
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    const float inverse = inverse_norm(second + row * kGemvWarps, inputs, residual.epsilon);
    // Blocks share the work of writing the new residual stream.
    if (residual.hidden_out != nullptr && row < a.rows && at.chunk % a.blocks == blockIdx.x)
      store_f32(residual.hidden_out + static_cast<long long>(row) * inputs, first, inputs, aligned_f32, x[row]);
#pragma unroll
    for (int i = 0; i < 16; ++i) x[row][i] *= inverse * norms.next[i];
  }
}

// Digits of rounds [first, first + ROUNDS) of this warp, the loads of all of them in flight together.
template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS, int ROUNDS>
__device__ __forceinline__ void quantize_rounds(const StreamArgs& a, const GemvMemory& m, int warp, int lane, int first,
                                                bool aligned) {
  const int inputs = static_cast<int>(a.shape.in_features);
  const auto* x = static_cast<const __nv_bfloat16*>(a.x);
  Raw16 raw[ROUNDS][ROWS];
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row)
      raw[i][row] = load_bf16(x + row * a.x_stride, Lane16(first + i, warp, lane).first_input(),
                              row < a.rows ? inputs : 0, aligned);
  }
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      float v[16];
      to_float(raw[i][row], v);
      quantize16<BITS, SEGMENTS, ASYMMETRIC, ROWS>(v, Lane16(first + i, warp, lane), a.shape.chunks, row, m.digits,
                                                   m.columns);
    }
  }
}

// Digits of this warp's chunks of all rows.
template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS>
__device__ __forceinline__ void quantize_inputs(const StreamArgs& a, const GemvMemory& m, int warp, int lane) {
  const bool aligned = aligned16(a.x) && a.x_stride % 8 == 0;
  constexpr int kRoundChunks = kGemvWarps * kGemvRoundChunks;
  const int rounds = (a.shape.chunks + kRoundChunks - 1) / kRoundChunks;
  constexpr int kBatch = 4 / ROWS;
  int first = 0;
  if constexpr (kBatch > 1) {
#pragma unroll 1
    for (; first + 1 < rounds; first += kBatch)  // a round past the end does nothing
      quantize_rounds<BITS, SEGMENTS, ASYMMETRIC, ROWS, kBatch>(a, m, warp, lane, first, aligned);
  }
#pragma unroll 1
  for (; first < rounds; ++first)
    quantize_rounds<BITS, SEGMENTS, ASYMMETRIC, ROWS, 1>(a, m, warp, lane, first, aligned);
}

}  // namespace facet::linear
