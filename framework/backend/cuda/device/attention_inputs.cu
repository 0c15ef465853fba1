// Rotary angles; per-head norms, rotation and the write of KV rows, one warp a head.
#include <cmath>

#include "device_math.cuh"
#include "launch.h"

namespace facet::cuda {
namespace {

constexpr int kMaxHeadDim = 1024;
constexpr unsigned kPrepareWarps = 8;

__global__ void rotary_kernel(const std::int32_t* positions, const float* inverse_frequency, std::int64_t live,
                              std::int64_t count, float* cosine, float* sine) {
  let_successor_begin();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  // The product is rounded to float first, as in the reference model.
  const float angle = static_cast<float>(positions[i / live]) * inverse_frequency[i % live];
  cosine[i] = cosf(angle);
  sine[i] = sinf(angle);
}

// A head in the registers of a warp: lane l holds the pairs (i, i + dim / 2) for i = l, l + 32, ..., so that a rotation
// needs no other lane.
template <int SLOTS>
struct Head {
  float low[SLOTS], high[SLOTS];
};

template <int SLOTS>
__device__ Head<SLOTS> load_head(const __nv_bfloat16* in, int half) {
  Head<SLOTS> head;
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    const int i = slot * 32 + static_cast<int>(threadIdx.x);
    head.low[slot] = i < half ? __bfloat162float(in[i]) : 0.0f;
    head.high[slot] = i < half ? __bfloat162float(in[half + i]) : 0.0f;
  }
  return head;
}

// The norm's weights, ones without.
template <int SLOTS>
__device__ Head<SLOTS> load_weight(const float* weight, int half) {
  Head<SLOTS> head;
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    const int i = slot * 32 + static_cast<int>(threadIdx.x);
    const bool read = weight != nullptr && i < half;
    head.low[slot] = read ? weight[i] : 1.0f;
    head.high[slot] = read ? weight[half + i] : 1.0f;
  }
  return head;
}

template <int SLOTS>
__device__ void norm(Head<SLOTS>& head, const Head<SLOTS>& weight, float epsilon, int half) {
  float squares = 0;
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot)
    squares += head.low[slot] * head.low[slot] + head.high[slot] * head.high[slot];
  const float factor = rsqrtf(warp_sum(squares) / static_cast<float>(2 * half) + epsilon);
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    head.low[slot] *= factor * weight.low[slot];
    head.high[slot] *= factor * weight.high[slot];
  }
}

// The cosines and sines of a token, in the place of the pairs that they turn: low and high. No turn past `live`.
template <int SLOTS>
__device__ Head<SLOTS> load_angles(const float* cosine, const float* sine, int live) {
  Head<SLOTS> angles;
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    const int i = slot * 32 + static_cast<int>(threadIdx.x);
    angles.low[slot] = i < live ? cosine[i] : 1.0f;
    angles.high[slot] = i < live ? sine[i] : 0.0f;
  }
  return angles;
}

template <int SLOTS>
__device__ void rotate(Head<SLOTS>& head, const Head<SLOTS>& angles) {
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    const float c = angles.low[slot], s = angles.high[slot], low = head.low[slot];
    head.low[slot] = low * c - head.high[slot] * s;
    head.high[slot] = head.high[slot] * c + low * s;
  }
}

// Stores both halves, each value through `narrow`.
template <int SLOTS, typename T, typename Narrow>
__device__ void store_head(const Head<SLOTS>& head, T* out, int half, Narrow narrow) {
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    const int i = slot * 32 + static_cast<int>(threadIdx.x);
    if (i >= half) continue;
    out[i] = narrow(head.low[slot]);
    out[half + i] = narrow(head.high[slot]);
  }
}

__device__ inline __nv_bfloat16 to_bf16(float value) {
  return __float2bfloat16(value);
}

// A KV row of one head, in the cache's element type; `scale` is where its scale goes when that is int8.
template <int SLOTS>
__device__ void store_kv(const Head<SLOTS>& head, abi::DType element, void* base, std::int64_t offset, float* scale,
                         int half) {
  if (element == abi::DType::f32) {
    store_head(head, static_cast<float*>(base) + offset, half, [](float value) { return value; });
    return;
  }
  if (element == abi::DType::bf16) {
    store_head(head, static_cast<__nv_bfloat16*>(base) + offset, half, to_bf16);
    return;
  }
  float largest = 0;
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot)
    largest = fmaxf(largest, fmaxf(fabsf(head.low[slot]), fabsf(head.high[slot])));
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  if (threadIdx.x == 0) *scale = largest / 127.0f;
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
  store_head(head, static_cast<std::int8_t*>(base) + offset, half,
             [inverse](float value) { return static_cast<std::int8_t>(rintf(value * inverse)); });
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

// A warp takes one head of one token: the queries' heads, then the keys', then the values'.
template <int SLOTS>
__global__ void prepare_attention_kernel(const __grid_constant__ PrepareParams x) {
  let_successor_begin();
  const int head = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (head >= x.query_heads + 2 * x.kv_heads) {
    wait_for_predecessor();
    return;
  }
  const bool is_query = head < x.query_heads;
  const bool is_value = head >= x.query_heads + x.kv_heads;
  const int half = x.head_dim / 2;
  const Head<SLOTS> weight = load_weight<SLOTS>(is_query ? x.query_norm : is_value ? nullptr : x.key_norm, half);
  wait_for_predecessor();
  // Everything that comes from memory is asked for before the first use.
  const std::int64_t token = blockIdx.x;
  const std::int32_t sequence = x.sequence[token];
  std::int64_t logical = x.positions[token];
  const Head<SLOTS> angles =
      load_angles<SLOTS>(x.cosine + token * x.live, x.sine + token * x.live, is_value ? 0 : x.live);
  const int source = is_value && x.values_from_keys ? head - x.kv_heads : head;
  Head<SLOTS> row = load_head<SLOTS>(x.projections + token * x.stride + source * x.head_dim, half);
  norm(row, weight, x.epsilon, half);
  rotate(row, angles);
  if (is_query) {
    store_head(row, x.queries + (token * x.query_heads + head) * x.head_dim, half, to_bf16);
    return;
  }
  if (sequence < 0) return;
  const abi::KvView& view = x.view;
  if (view.ring_rows > 0) logical %= view.ring_rows;
  const std::int64_t rows = view.layout.block_rows;
  const std::int64_t block = view.block_table[sequence * view.table_stride + logical / rows];
  if (block < 0) return;
  const int kv_head = (head - x.query_heads) % x.kv_heads;
  const std::int64_t offset = block * view.block_stride + logical % rows * view.row_stride + kv_head * view.head_stride;
  float* scale = is_value ? view.value_scales : view.key_scales;
  if (view.layout.element == abi::DType::i8)
    scale +=
        block * view.scale_block_stride + logical % rows * view.scale_row_stride + kv_head * view.scale_head_stride;
  store_kv(row, view.layout.element, is_value ? view.values : view.keys, offset, scale, half);
}

}  // namespace

cudaError_t launch_rotary(const std::int32_t* positions, std::int64_t tokens, const float* inverse_frequency,
                          const RotaryAngles& angles, cudaStream_t stream) {
  const std::int64_t count = tokens * angles.live;
  return launch_dependent(rotary_kernel, dim3(static_cast<unsigned>((count + 255) / 256)), dim3(256), 0, stream,
                          positions, inverse_frequency, angles.live, count, angles.cosine, angles.sine);
}

cudaError_t launch_prepare_attention(const AttentionInput& x, cudaStream_t stream) {
  if (x.head_dim > kMaxHeadDim || x.head_dim % 2 != 0) return cudaErrorInvalidValue;
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
  // Few tokens take a warp a block, so that all of the device's memory paths work; many take blocks of several.
  const unsigned heads = static_cast<unsigned>(x.query_heads + 2 * x.kv_heads);
  const unsigned warps = x.tokens <= 8 ? 1 : kPrepareWarps;
  const dim3 grid(static_cast<unsigned>(x.tokens), (heads + warps - 1) / warps);
  const auto kernel = x.head_dim <= 128   ? prepare_attention_kernel<2>
                      : x.head_dim <= 256 ? prepare_attention_kernel<4>
                      : x.head_dim <= 512 ? prepare_attention_kernel<8>
                                          : prepare_attention_kernel<16>;
  return launch_dependent(kernel, grid, dim3(32, warps), 0, stream, params);
}

}  // namespace facet::cuda
