// Root mean square norms and the gated activation. A norm takes one block a row and loads the whole row before the
// first sum, so that its time is one trip to memory and the sums over the block. Few rows of usual widths have a kernel
// of their own; many take several blocks a multiprocessor, so that one block's sums run under another's loads.
#include "device_math.cuh"
#include "facet/sdk/cuda/vector.cuh"
#include "few_norm.cuh"
#include "launch.h"
#include "norm_params.cuh"

namespace facet::cuda {
namespace {

constexpr int kMaxThreads = 1024;
// Of a block where there are many rows.
constexpr int kManyRows = 512;
constexpr int kManyThreads = kFewThreads;
constexpr int kManySlots = kFewSlots;
constexpr int kManyBlocks = 4;  // of a multiprocessor

// Thread t holds the vectors t, t + threads, ... of the row: SLOTS of V elements.
template <int V, int SLOTS, int THREADS = kMaxThreads, int BLOCKS = 1>
__global__ void __launch_bounds__(THREADS, BLOCKS) norm_kernel(const __grid_constant__ NormParams x) {
  __shared__ float scratch[64];
  let_successor_begin();
  const int vectors = x.width / V;
  const bool updates = x.update != nullptr;
  wait_for_predecessor();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * x.width;
  Floats<V> value[SLOTS], update[SLOTS];
  float squares = 0;
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    const int at = slot * blockDim.x + threadIdx.x;
    if (at >= vectors) continue;
    value[slot] = load_floats<V>(x.hidden + row, at);
    if (updates) update[slot] = load_floats<V>(x.update + row, at);
  }
  if (updates) {
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot)
      if (slot * blockDim.x + threadIdx.x < vectors) squares += sum_of_squares(update[slot]);
    const float factor = inverse_rms(block_sum(squares, scratch), x.width, x.epsilon);
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
      const int at = slot * blockDim.x + threadIdx.x;
      if (at >= vectors) break;
      const Floats<V> post = load_floats<V>(x.post_norm, at);
#pragma unroll
      for (int e = 0; e < V; ++e)
        value[slot].at[e] = (value[slot].at[e] + update[slot].at[e] * factor * post.at[e]) * x.scale;
      store_floats<V>(x.hidden_out + row, at, value[slot]);
    }
  }
  if (x.next_norm == nullptr) return;
  squares = 0;
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot)
    if (slot * blockDim.x + threadIdx.x < vectors) squares += sum_of_squares(value[slot]);
  const float factor = inverse_rms(block_sum(squares, scratch + 32), x.width, x.epsilon);
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    const int at = slot * blockDim.x + threadIdx.x;
    if (at >= vectors) continue;
    const Floats<V> next = load_floats<V>(x.next_norm, at);
#pragma unroll
    for (int e = 0; e < V; ++e) value[slot].at[e] *= factor * next.at[e];
    store_floats<V>(x.normed + row, at, value[slot]);
  }
}

__device__ float gelu_tanh(float x) {
  constexpr float kRoot = 0.7978845608028654f;  // sqrt(2 / pi)
  return 0.5f * x * (1.0f + tanhf(kRoot * (x + 0.044715f * x * x * x)));
}

constexpr int kGateThreads = 256;

template <int V>
__global__ void gelu_gate_kernel(const __nv_bfloat16* gate_up, std::int64_t width, __nv_bfloat16* out) {
  let_successor_begin();
  wait_for_predecessor();
  const int at = static_cast<int>(blockIdx.y) * kGateThreads + static_cast<int>(threadIdx.x);
  if (at >= width / V) return;
  const std::int64_t row = blockIdx.x;
  const __nv_bfloat16* gates = gate_up + row * 2 * width;
  Floats<V> gate = load_floats<V>(gates, at);
  const Floats<V> up = load_floats<V>(gates + width, at);
#pragma unroll
  for (int e = 0; e < V; ++e) gate.at[e] = gelu_tanh(gate.at[e]) * up.at[e];
  store_floats<V>(out + row * width, at, gate);
}

cudaError_t launch_norm(const NormParams& x, std::int64_t rows, cudaStream_t stream) {
  const bool aligned = aligned_rows<4>(x.width, x.hidden, x.update, x.hidden_out, x.normed, x.post_norm, x.next_norm);
  const int vectors = aligned ? x.width / 4 : x.width;
  const bool usual = aligned && vectors <= kManyThreads * kManySlots;  // what models have
  const int slots = usual ? kManySlots : (vectors + kMaxThreads - 1) / kMaxThreads;
  if (slots > (aligned ? 4 : 16)) return cudaErrorInvalidValue;  // rows of more than 16,384
  const int threads = ((vectors + slots - 1) / slots + 31) / 32 * 32;
  const auto kernel = usual && rows >= kManyRows ? norm_kernel<4, kManySlots, kManyThreads, kManyBlocks>
                      : usual                    ? few_norm_kernel<4>
                      : aligned                  ? norm_kernel<4, 4>
                                                 : norm_kernel<1, 16>;
  return launch_dependent(kernel, dim3(static_cast<unsigned>(rows)), dim3(static_cast<unsigned>(threads)), 0, stream,
                          x);
}

}  // namespace

cudaError_t launch_rms_norm(const float* in, const float* weight, float epsilon, std::int64_t tokens,
                            std::int64_t width, void* out, cudaStream_t stream) {
  const NormParams params{
      in, nullptr, nullptr, weight, nullptr, static_cast<__nv_bfloat16*>(out), 1.0f, epsilon, static_cast<int>(width)};
  return launch_norm(params, tokens, stream);
}

cudaError_t launch_residual_norm(const ResidualInput& x, cudaStream_t stream) {
  const NormParams params{x.hidden,
                          static_cast<const __nv_bfloat16*>(x.update),
                          x.post_norm,
                          x.next_norm,
                          x.hidden_out,
                          static_cast<__nv_bfloat16*>(x.normed),
                          x.scale,
                          x.epsilon,
                          static_cast<int>(x.width)};
  return launch_norm(params, x.tokens, stream);
}

cudaError_t launch_gelu_gate(const void* gate_up, std::int64_t tokens, std::int64_t width, void* out,
                             cudaStream_t stream) {
  const auto launch = [&](auto kernel, std::int64_t vectors) {
    const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>((vectors + kGateThreads - 1) / kGateThreads));
    return launch_dependent(kernel, grid, dim3(kGateThreads), 0, stream, static_cast<const __nv_bfloat16*>(gate_up),
                            width, static_cast<__nv_bfloat16*>(out));
  };
  return aligned_rows<8>(width, gate_up, out) ? launch(gelu_gate_kernel<8>, width / 8)
                                              : launch(gelu_gate_kernel<1>, width);
}

}  // namespace facet::cuda
