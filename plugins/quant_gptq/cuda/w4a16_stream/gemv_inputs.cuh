// Activations of gemv.cuh: read, and normalised where that is fused.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/gemv_digits.cuh"

namespace facet::linear {

template <int BYTES>
__device__ __forceinline__ bool aligned_to(const void* pointer) {
  return (reinterpret_cast<unsigned long long>(pointer) & (BYTES - 1)) == 0;
}

__device__ __forceinline__ void to_float(const uint2& raw, float* v) {
  v[0] = low_bf16(raw.x);
  v[1] = high_bf16(raw.x);
  v[2] = low_bf16(raw.y);
  v[3] = high_bf16(raw.y);
}

// This lane's inputs of a row in a round, 0 past its end. `whole`: rows begin at multiples of 16 bytes and have a
// multiple of 4 inputs. The other way is slow and short, so that it takes little of the instruction cache.
__device__ __forceinline__ void load_f32(const float* row, const Round& at, int inputs, bool whole, float (&v)[16]) {
#pragma unroll
  for (float& value : v) value = 0.0f;
  if (whole) {
#pragma unroll
    for (int i = 0; i < kGemvRoundChunks; ++i) {
      if (at.first_input(i) >= inputs) continue;
      const uint4 quad = load_u128(row + at.first_input(i));
      v[4 * i] = __uint_as_float(quad.x);
      v[4 * i + 1] = __uint_as_float(quad.y);
      v[4 * i + 2] = __uint_as_float(quad.z);
      v[4 * i + 3] = __uint_as_float(quad.w);
    }
    return;
  }
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int i = 0; i < kGemvRoundChunks; ++i) {
      v[4 * i] = v[4 * i + 1];
      v[4 * i + 1] = v[4 * i + 2];
      v[4 * i + 2] = v[4 * i + 3];
      v[4 * i + 3] = 0.0f;
      const int at_input = at.first_input(i) + k;
      if (at_input < inputs) v[4 * i + 3] = *static_cast<const volatile float*>(row + at_input);
    }
  }
}
__device__ __forceinline__ void load_bf16(const __nv_bfloat16* row, const Round& at, int inputs, bool whole,
                                          uint2 (&raw)[kGemvRoundChunks]) {
#pragma unroll
  for (uint2& pairs : raw) pairs = make_uint2(0, 0);
  if (whole) {
#pragma unroll
    for (int i = 0; i < kGemvRoundChunks; ++i) {
      if (at.first_input(i) < inputs) raw[i] = load_u64(row + at.first_input(i));
    }
    return;
  }
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int i = 0; i < kGemvRoundChunks; ++i) {
      raw[i].x = __funnelshift_r(raw[i].x, raw[i].y, 16);
      raw[i].y >>= 16;
      const int at_input = at.first_input(i) + k;
      if (at_input < inputs)
        raw[i].y |= static_cast<std::uint32_t>(*reinterpret_cast<const volatile unsigned short*>(row + at_input)) << 16;
    }
  }
}

// Weights of the norms for this lane's inputs. They are constants like the packed weights, so a block reads them while
// it waits for its inputs.
struct NormWeights {
  float post[16];
  float next[16];
};

__device__ __forceinline__ void load_norms(const StreamArgs& a, const Round& at, NormWeights& norms) {
  const StreamResidual& residual = a.residual;
  const int inputs = static_cast<int>(a.shape.in_features);
  const bool whole = inputs % 4 == 0;
  load_f32(residual.next_norm, at, inputs, whole && aligned_to<16>(residual.next_norm), norms.next);
  load_f32(residual.post_norm, at, residual.update != nullptr ? inputs : 0, whole && aligned_to<16>(residual.post_norm),
           norms.post);
}

__device__ __forceinline__ float sum_of_warps(const float* partial) {
  const float4 a = *reinterpret_cast<const float4*>(partial);
  const float4 b = *reinterpret_cast<const float4*>(partial + 4);
  return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}

// What the sums of a row over its warps ([sum][kGemvWarps]: of u u, h h, h v and v v) say of its norms.
struct RowNorm {
  float first;     // factor of the update
  float squares;   // of the new row before its scale
  bool cancelled;  // the update all but cancels the stream, and rounding is as large as `squares`: sum what is left

  // per: one by the number of inputs.
  __device__ __forceinline__ RowNorm(const float* partial, float per, float epsilon, bool updated) {
    first = updated ? rsqrtf(sum_of_warps(partial) * per + epsilon) : 0.0f;
    const float parts = fmaf(first * first, sum_of_warps(partial + 3 * kGemvWarps), sum_of_warps(partial + kGemvWarps));
    squares = fmaf(2.0f * first, sum_of_warps(partial + 2 * kGemvWarps), parts);
    cancelled = squares < 0x1p-6f * parts;
  }
};

// A lane's share of one row of the residual stream.
struct ResidualRow {
  uint2 update[kGemvRoundChunks];
  float hidden[16];
};

__device__ __forceinline__ void load_residual(const StreamArgs& a, const Round& at, int row, ResidualRow& raw) {
  const StreamResidual& residual = a.residual;
  const int inputs = static_cast<int>(a.shape.in_features);
  const int known = row < a.rows ? inputs : 0;
  const long long offset = static_cast<long long>(row) * inputs;
  const auto* update = static_cast<const __nv_bfloat16*>(residual.update) + offset;
  const bool whole = inputs % 4 == 0;
  load_f32(residual.hidden + offset, at, known, whole && aligned_to<16>(residual.hidden), raw.hidden);
  load_bf16(update, at, residual.update != nullptr ? known : 0, whole && aligned_to<8>(residual.update), raw.update);
}

// The fused residual norm of one row: normalised values, and this block's share of the new residual stream.
template <int ROWS>
__device__ __forceinline__ void normalize_row(const StreamArgs& a, const GemvMemory& m, const Round& at, int warp,
                                              int lane, const NormWeights& norms, ResidualRow& raw, int row, float per,
                                              float (&x)[16]) {
  const StreamResidual& residual = a.residual;
  const int inputs = static_cast<int>(a.shape.in_features);
  const bool updated = residual.update != nullptr;
  float* partial = m.squares + row * kGemvNormSums * kGemvWarps;
  float u[16];
#pragma unroll
  for (int i = 0; i < kGemvRoundChunks; ++i) to_float(raw.update[i], u + 4 * i);
  // Sums of u u, h h, h v and v v, with v the update times its weight.
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float v = u[i] * norms.post[i];
    sums[0] = fmaf(u[i], u[i], sums[0]);
    sums[1] = fmaf(raw.hidden[i], raw.hidden[i], sums[1]);
    sums[2] = fmaf(raw.hidden[i], v, sums[2]);
    sums[3] = fmaf(v, v, sums[3]);
  }
  const float sum = fold4<32>(sums, lane, Sum{});
  if (lane % 8 == 0) partial[lane / 8 * kGemvWarps + warp] = sum;
  named_sync(kGemvBarrier, kGemvConsumers);
#pragma unroll
  for (int i = 0; i < kGemvRoundChunks; ++i) {  // unpacked again, as registers are scarce
    forget(raw.update[i]);
    to_float(raw.update[i], u + 4 * i);
  }
  const float scale = updated ? residual.scale : 1.0f;
  const RowNorm norm(partial, per, residual.epsilon, updated);
  float squares = norm.squares;
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = fmaf(u[i] * norm.first, norms.post[i], raw.hidden[i]) * scale;
  if (norm.cancelled) {
    float left = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i) left = fmaf(x[i], x[i], left);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) left += __shfl_xor_sync(~0u, left, offset);
    if (lane == 0) partial[4 * kGemvWarps + warp] = left;
    named_sync(kGemvBarrier, kGemvConsumers);
    squares = sum_of_warps(partial + 4 * kGemvWarps);
  } else {
    squares *= scale * scale;
  }
  const float second = rsqrtf(squares * per + residual.epsilon);
  // Blocks share the work of writing the new residual stream.
  if (residual.hidden_out != nullptr && row < a.rows) {
    float* out = residual.hidden_out + static_cast<long long>(row) * inputs;
    const bool aligned = inputs % 4 == 0 && aligned_to<16>(out);
#pragma unroll
    for (int i = 0; i < kGemvRoundChunks; ++i) {
      const int first = at.first_input(i);
      int writer = at.chunk_of(i);
      while (writer >= a.blocks) writer -= a.blocks;
      if (writer != static_cast<int>(blockIdx.x)) continue;
      if (aligned && first + 4 <= inputs) {
        *reinterpret_cast<float4*>(out + first) = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (first + k < inputs) out[first + k] = x[4 * i + k];
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] *= second * norms.next[i];
}

// Items are rows of rounds: item % ROWS of round item / ROWS. The bf16 of a chunk's row wait for their turn where its
// digits will be, 64 bytes in each column of each half: byte 8 lane of them.
template <int ROWS>
__device__ __forceinline__ unsigned char* waiting_place(const GemvMemory& m, int chunk, int row, int byte) {
  std::uint32_t* column =
      m.digits + (byte >> 7) * m.half + chunk * gemv_half_words<ROWS>() + (((byte >> 6) & 1) * ROWS + row) * 16;
  return reinterpret_cast<unsigned char*>(column) + (byte & 63);
}

// Starts the loads of this warp's chunks of all rows; two chunks at a time, 16 lanes each.
template <int ROWS>
__device__ __forceinline__ void fetch_inputs(const StreamArgs& a, const GemvMemory& m, int warp, int lane) {
  const int inputs = static_cast<int>(a.shape.in_features);
  const auto* x = static_cast<const __nv_bfloat16*>(a.x);
  const bool aligned = aligned_to<16>(x) && a.x_stride % 8 == 0;
#pragma unroll 1
  for (int chunk = warp + lane / 16 * kGemvWarps; chunk < a.shape.chunks; chunk += 2 * kGemvWarps) {
    const int first = chunk * kChunkInputs + lane % 16 * 8;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      unsigned char* place = waiting_place<ROWS>(m, chunk, row, lane % 16 * 16);
      const __nv_bfloat16* values = x + row * a.x_stride + first;
      if (aligned && row < a.rows && first + 8 <= inputs) {
        copy16(shared_address(place), values);
      } else {
#pragma unroll 1
        for (int i = 0; i < 8; ++i)
          reinterpret_cast<unsigned short*>(place)[i] =
              row < a.rows && first + i < inputs ? *reinterpret_cast<const volatile unsigned short*>(values + i) : 0;
      }
    }
  }
  __syncwarp();
}

template <int ROWS>
__device__ __forceinline__ void take_inputs(const GemvMemory& m, const Round& at, int chunks, int row,
                                            uint2 (&raw)[kGemvRoundChunks]) {
#pragma unroll
  for (int i = 0; i < kGemvRoundChunks; ++i) {
    raw[i] = make_uint2(0, 0);
    if (at.chunk_of(i) < chunks)
      raw[i] = *reinterpret_cast<const uint2*>(waiting_place<ROWS>(m, at.chunk_of(i), row, at.lane * 8));
  }
}

// Digits of this warp's chunks of all rows.
template <int SEGMENTS, int ROWS>
__device__ __forceinline__ void prepare_inputs(const StreamArgs& a, const GemvMemory& m, int warp, int lane) {
  constexpr int kRoundChunks = kGemvWarps * kGemvRoundChunks;
  const int chunks = a.shape.chunks;
  const int items = (chunks + kRoundChunks - 1) / kRoundChunks * ROWS;
  wait_for_predecessor();
  fetch_inputs<ROWS>(a, m, warp, lane);
  copies_done();
  __syncwarp();
  uint2 raw[kGemvRoundChunks];
  take_inputs<ROWS>(m, Round(0, warp, lane), chunks, 0, raw);
#pragma unroll 1
  for (int item = 0; item < items; ++item) {
    float v[16];
#pragma unroll
    for (int i = 0; i < kGemvRoundChunks; ++i) to_float(raw[i], v + 4 * i);
    if (item + 1 < items) take_inputs<ROWS>(m, Round((item + 1) / ROWS, warp, lane), chunks, (item + 1) % ROWS, raw);
    __syncwarp();  // all have read before digits go there
    quantize_round<SEGMENTS, ROWS>(v, Round(item / ROWS, warp, lane).of_row(item % ROWS), chunks, m);
  }
}

template <int SEGMENTS, int ROWS>
__device__ __forceinline__ void prepare_normalized(const StreamArgs& a, const GemvMemory& m, int warp, int lane) {
  const Round at(0, warp, lane);
  const float per = 1.0f / static_cast<float>(static_cast<int>(a.shape.in_features));
  NormWeights norms;
  load_norms(a, at, norms);
  wait_for_predecessor();
#pragma unroll 1
  for (int row = 0; row < ROWS; ++row) {
    ResidualRow residual;
    load_residual(a, at, row, residual);
    float x[16];
    normalize_row<ROWS>(a, m, at, warp, lane, norms, residual, row, per, x);
    quantize_round<SEGMENTS, ROWS>(x, at.of_row(row), a.shape.chunks, m);
  }
}

}  // namespace facet::linear
