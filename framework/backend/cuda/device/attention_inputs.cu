// Rotary angles; per-head norms, rotation and the write of KV rows: one warp a head.
#include <cmath>

#include "device_math.cuh"
#include "launch.h"

namespace facet::cuda {
namespace {

constexpr int kMaxHeadDim = 1024;
constexpr int kPerLane = kMaxHeadDim / 32;

__global__ void rotary_kernel(const std::int32_t* positions, const float* inverse_frequency, std::int64_t live,
                              std::int64_t count, float* cosine, float* sine) {
  wait_for_predecessor();
  let_successor_begin();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  // The product is rounded to float first, as in the reference model.
  const float angle = static_cast<float>(positions[i / live]) * inverse_frequency[i % live];
  cosine[i] = cosf(angle);
  sine[i] = sinf(angle);
}

struct Row {
  float values[kPerLane];
};

// rmsnorm of one head by one warp; lane l holds elements l, l + 32, ...
__device__ void load_normed(const __nv_bfloat16* in, const float* weight, float epsilon, int dim, Row& row) {
  const int lane = static_cast<int>(threadIdx.x);
  float squares = 0;
#pragma unroll
  for (int slot = 0; slot < kPerLane; ++slot) {
    const int i = slot * 32 + lane;
    row.values[slot] = i < dim ? __bfloat162float(in[i]) : 0.0f;
    squares += row.values[slot] * row.values[slot];
  }
  const float factor = rsqrtf(warp_sum(squares) / static_cast<float>(dim) + epsilon);
#pragma unroll
  for (int slot = 0; slot < kPerLane; ++slot) {
    const int i = slot * 32 + lane;
    if (i < dim) row.values[slot] *= factor * (weight != nullptr ? weight[i] : 1.0f);
  }
}

// Turns pairs (i, i + dim / 2) for i < live. The partner may lie in another lane, so it goes through shared memory.
__device__ void rotate(Row& row, const float* cosine, const float* sine, int live, int dim, float* shared) {
  const int lane = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int slot = 0; slot < kPerLane; ++slot) {
    if (slot * 32 + lane < dim) shared[slot * 32 + lane] = row.values[slot];
  }
  __syncwarp();
  const int half = dim / 2;
#pragma unroll
  for (int slot = 0; slot < kPerLane; ++slot) {
    const int i = slot * 32 + lane;
    if (i >= dim) continue;
    const int pair = i < half ? i : i - half;
    if (pair >= live) continue;
    row.values[slot] = i < half ? row.values[slot] * cosine[pair] - shared[i + half] * sine[pair]
                                : row.values[slot] * cosine[pair] + shared[i - half] * sine[pair];
  }
  __syncwarp();
}

__device__ void store(const abi::KvView& view, const Row& row, int dim, void* base, std::int64_t offset, float* scales,
                      std::int64_t scale_offset) {
  const int lane = static_cast<int>(threadIdx.x);
  float largest = 0;
  if (view.layout.element == abi::DType::i8) {
#pragma unroll
    for (int slot = 0; slot < kPerLane; ++slot)
      if (slot * 32 + lane < dim) largest = fmaxf(largest, fabsf(row.values[slot]));
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    if (lane == 0) scales[scale_offset] = largest / 127.0f;
  }
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
#pragma unroll
  for (int slot = 0; slot < kPerLane; ++slot) {
    const int i = slot * 32 + lane;
    if (i >= dim) continue;
    const float value = row.values[slot];
    if (view.layout.element == abi::DType::f32) {
      static_cast<float*>(base)[offset + i] = value;
    } else if (view.layout.element == abi::DType::bf16) {
      static_cast<__nv_bfloat16*>(base)[offset + i] = __float2bfloat16(value);
    } else {
      static_cast<std::int8_t*>(base)[offset + i] = static_cast<std::int8_t>(rintf(value * inverse));
    }
  }
}

struct PrepareParams {
  const __nv_bfloat16* projections;
  std::int64_t stride;
  int query_heads, kv_heads, head_dim, live;
  bool values_from_keys;
  const float *query_norm, *key_norm, *cosine, *sine;
  float epsilon;
  const std::int32_t *positions, *sequence;
  __nv_bfloat16* queries;
  abi::KvView view;
};

// Block (token, head); heads: queries first, then one for each KV head, which writes key and value.
__global__ void prepare_attention_kernel(const __grid_constant__ PrepareParams x) {
  extern __shared__ float shared[];
  wait_for_predecessor();
  let_successor_begin();
  const int head = static_cast<int>(blockIdx.y);
  const std::int64_t token = blockIdx.x;
  const int dim = x.head_dim;
  const __nv_bfloat16* in = x.projections + token * x.stride;
  const float* cosine = x.cosine + token * x.live;
  const float* sine = x.sine + token * x.live;
  Row row;
  if (head < x.query_heads) {
    load_normed(in + head * dim, x.query_norm, x.epsilon, dim, row);
    rotate(row, cosine, sine, x.live, dim, shared);
    __nv_bfloat16* out = x.queries + (token * x.query_heads + head) * dim;
#pragma unroll
    for (int slot = 0; slot < kPerLane; ++slot) {
      const int i = slot * 32 + static_cast<int>(threadIdx.x);
      if (i < dim) out[i] = __float2bfloat16(row.values[slot]);
    }
    return;
  }
  const int kv_head = head - x.query_heads;
  const std::int32_t sequence = x.sequence[token];
  if (sequence < 0) return;
  const abi::KvView& view = x.view;
  std::int64_t logical = x.positions[token];
  if (view.ring_rows > 0) logical %= view.ring_rows;
  const std::int64_t rows = view.layout.block_rows;
  const std::int64_t block = view.block_table[sequence * view.table_stride + logical / rows];
  if (block < 0) return;
  const std::int64_t offset = block * view.block_stride + logical % rows * view.row_stride + kv_head * view.head_stride;
  const std::int64_t scale_offset =
      block * view.scale_block_stride + logical % rows * view.scale_row_stride + kv_head * view.scale_head_stride;
  const __nv_bfloat16* key = in + (x.query_heads + kv_head) * dim;
  const __nv_bfloat16* value = x.values_from_keys ? key : key + x.kv_heads * dim;
  load_normed(key, x.key_norm, x.epsilon, dim, row);
  rotate(row, cosine, sine, x.live, dim, shared);
  store(view, row, dim, view.keys, offset, view.key_scales, scale_offset);
  load_normed(value, nullptr, x.epsilon, dim, row);
  store(view, row, dim, view.values, offset, view.value_scales, scale_offset);
}

}  // namespace

cudaError_t launch_rotary(const std::int32_t* positions, std::int64_t tokens, const float* inverse_frequency,
                          const RotaryAngles& angles, cudaStream_t stream) {
  const std::int64_t count = tokens * angles.live;
  return launch_dependent(rotary_kernel, dim3(static_cast<unsigned>((count + 255) / 256)), dim3(256), 0, stream,
                          positions, inverse_frequency, angles.live, count, angles.cosine, angles.sine);
}

cudaError_t launch_prepare_attention(const AttentionInput& x, cudaStream_t stream) {
  if (x.head_dim > kMaxHeadDim) return cudaErrorInvalidValue;
  PrepareParams params;
  params.projections = static_cast<const __nv_bfloat16*>(x.projections);
  params.stride = x.stride;
  params.query_heads = static_cast<int>(x.query_heads);
  params.kv_heads = static_cast<int>(x.kv_heads);
  params.head_dim = static_cast<int>(x.head_dim);
  params.live = static_cast<int>(x.rotary.live);
  params.values_from_keys = x.values_from_keys;
  params.query_norm = x.query_norm;
  params.key_norm = x.key_norm;
  params.cosine = x.rotary.cosine;
  params.sine = x.rotary.sine;
  params.epsilon = x.epsilon;
  params.positions = x.positions;
  params.sequence = x.sequence;
  params.queries = static_cast<__nv_bfloat16*>(x.queries);
  params.view = *x.kv;
  const dim3 grid(static_cast<unsigned>(x.tokens), static_cast<unsigned>(x.query_heads + x.kv_heads));
  return launch_dependent(prepare_attention_kernel, grid, dim3(32),
                          static_cast<std::size_t>(x.head_dim) * sizeof(float), stream, params);
}

}  // namespace facet::cuda
