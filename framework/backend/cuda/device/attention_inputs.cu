// Rotary angles; per-head norms, rotation and the write of KV rows, one warp a head.
#include <cmath>

#include "device_math.cuh"
#include "facet/sdk/cuda/head.cuh"
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

// Stores `half` pairs as two halves, each value through `narrow`.
template <int V, int SLOTS, typename T, typename Narrow>
__device__ void store_head(const Head<V, SLOTS>& head, T* out, int half, Narrow narrow) {
  each_pair(head, half, static_cast<int>(threadIdx.x), [&](int at, const Floats<V>& low, const Floats<V>& high) {
    Pack<V, T> low_pack, high_pack;
#pragma unroll
    for (int e = 0; e < V; ++e) {
      low_pack.at[e] = narrow(low.at[e]);
      high_pack.at[e] = narrow(high.at[e]);
    }
    store_pack<V>(out, at, low_pack);
    store_pack<V>(out + half, at, high_pack);
  });
}

__device__ inline __nv_bfloat16 to_bf16(float value) {
  return __float2bfloat16(value);
}

// Pairs from `live` on count for nothing.
template <int V, int SLOTS>
__device__ void clear_from(Head<V, SLOTS>& head, int live) {
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
#pragma unroll
    for (int e = 0; e < V; ++e) {
      if ((slot * 32 + static_cast<int>(threadIdx.x)) * V + e < live) continue;
      head.low[slot].at[e] = head.high[slot].at[e] = 0.0f;
    }
  }
}

// The first `half` pairs of a KV row of one head, in the cache's element type; `scale` is where its scale goes when
// that is int8.
template <int V, int SLOTS>
__device__ void store_kv(const Head<V, SLOTS>& head, abi::DType element, void* base, std::int64_t offset, float* scale,
                         int half) {
  if (element == abi::DType::f32) {
    store_head(head, static_cast<float*>(base) + offset, half, [](float value) { return value; });
    return;
  }
  if (element == abi::DType::bf16) {
    store_head(head, static_cast<__nv_bfloat16*>(base) + offset, half, to_bf16);
    return;
  }
  const CodeScale codes = code_scale(head);
  if (threadIdx.x == 0) *scale = codes.scale;
  store_head(head, static_cast<std::int8_t*>(base) + offset, half, [codes](float value) { return codes.code(value); });
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
template <int V, int SLOTS>
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
  const float* norm_weight = is_query ? x.query_norm : is_value ? nullptr : x.key_norm;
  const auto lane = static_cast<int>(threadIdx.x);
  Head<V, SLOTS> weight =
      load_halves<V, SLOTS>(norm_weight, norm_weight + half, norm_weight != nullptr ? half : 0, 1.0f, 1.0f, lane);
  const bool shared = x.view.key_channels > 0;
  if (shared && is_query)
    take_key_weight(weight, load_halves<V, SLOTS>(x.key_norm, x.key_norm + half, half, 1.0f, 1.0f, lane), x.live, lane);
  // The step's arrays and tables were there before its first kernel.
  const abi::KvView& view = x.view;
  const std::int64_t token = blockIdx.x;
  const std::int32_t sequence = is_query ? -1 : x.sequence[token];
  std::int64_t logical = 0;
  std::int64_t block = -1;
  if (sequence >= 0) {
    logical = x.positions[token];
    if (view.ring_rows > 0) logical %= view.ring_rows;
    block = view.block_table[sequence * view.table_stride + logical / view.layout.block_rows];
  }
  wait_for_predecessor();
  // Everything that comes from memory is asked for before the first use.
  const Head<V, SLOTS> angles = load_halves<V, SLOTS>(x.cosine + token * x.live, x.sine + token * x.live,
                                                      is_value ? 0 : x.live, 1.0f, 0.0f, lane);  // no turn past `live`
  const int source = is_value && x.values_from_keys ? head - x.kv_heads : head;
  const __nv_bfloat16* in = x.projections + token * x.stride + source * x.head_dim;
  Head<V, SLOTS> row = load_halves<V, SLOTS>(in, in + half, half, 0.0f, 0.0f, lane);
  norm(row, weight, x.epsilon, half);
  rotate(row, angles);
  if (is_query) {
    store_head(row, x.queries + (token * x.query_heads + head) * x.head_dim, half, to_bf16);
    return;
  }
  if (block < 0) return;
  const std::int64_t rows = view.layout.block_rows;
  const int kv_head = (head - x.query_heads) % x.kv_heads;
  const std::int64_t offset = block * view.block_stride + logical % rows * view.row_stride + kv_head * view.head_stride;
  float* scale = is_value ? view.value_scales : view.key_scales;
  if (view.layout.element == abi::DType::i8)
    scale +=
        block * view.scale_block_stride + logical % rows * view.scale_row_stride + kv_head * view.scale_head_stride;
  const bool in_part = shared && !is_value;
  if (in_part) clear_from(row, x.live);
  store_kv(row, view.layout.element, is_value ? view.values : view.keys, offset, scale, in_part ? x.live : half);
}

// Whether rows, norms, angles and the cache can be accessed four elements at a time.
bool in_fours(const AttentionInput& x) {
  const abi::KvView& view = *x.kv;
  const std::int64_t counts = x.stride | x.head_dim / 2 | x.rotary.live | view.block_stride | view.row_stride |
                              view.head_stride;  // all multiples of four
  return aligned_rows<4>(counts, x.projections, x.query_norm, x.key_norm, x.rotary.cosine, x.rotary.sine, x.queries,
                         view.keys, view.values);
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
  const auto kernel = !in_fours(x)        ? prepare_attention_kernel<1, 16>
                      : x.head_dim <= 256 ? prepare_attention_kernel<4, 1>
                      : x.head_dim <= 512 ? prepare_attention_kernel<4, 2>
                                          : prepare_attention_kernel<4, 4>;
  return launch_dependent(kernel, grid, dim3(32, warps), 0, stream, params);
}

}  // namespace facet::cuda
