// Root mean square norms and the gated activation: one block a row.
#include "device_math.cuh"
#include "launch.h"

namespace facet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxPerThread = 32;  // rows of up to 8192 stay in registers

__device__ float inverse_rms(float squares, std::int64_t width, float epsilon) {
  return rsqrtf(squares / static_cast<float>(width) + epsilon);
}

__device__ float as_float(const __nv_bfloat16* values, std::int64_t i) {
  return __bfloat162float(values[i]);
}

__global__ void rms_norm_kernel(const float* in, const float* weight, float epsilon, std::int64_t width,
                                __nv_bfloat16* out) {
  __shared__ float scratch[32];
  wait_for_predecessor();
  let_successor_begin();
  const std::int64_t row = blockIdx.x;
  in += row * width;
  out += row * width;
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) squares += in[i] * in[i];
  const float factor = inverse_rms(block_sum(squares, scratch), width, epsilon);
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) out[i] = __float2bfloat16(in[i] * factor * weight[i]);
}

// The updated row is kept in registers between the two norms where it fits, else read again.
__global__ void residual_norm_kernel(const float* hidden, const __nv_bfloat16* update, const float* post_norm,
                                     float scale, const float* next_norm, float* hidden_out, __nv_bfloat16* normed,
                                     std::int64_t width, float epsilon) {
  __shared__ float scratch[32];
  wait_for_predecessor();
  let_successor_begin();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * width;
  float kept[kMaxPerThread];
  float factor = 0;
  if (update != nullptr) {
    float squares = 0;
    for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      const float value = as_float(update + row, i);
      squares += value * value;
    }
    factor = inverse_rms(block_sum(squares, scratch), width, epsilon);
  }
  float squares = 0;
  int slot = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x, ++slot) {
    float value = hidden[row + i];
    if (update != nullptr) {
      value = (value + as_float(update + row, i) * factor * post_norm[i]) * scale;
      hidden_out[row + i] = value;
    }
    if (slot < kMaxPerThread) kept[slot] = value;
    squares += value * value;
  }
  if (next_norm == nullptr) return;
  const float next = inverse_rms(block_sum(squares, scratch), width, epsilon);
  const float* again = update != nullptr ? hidden_out : hidden;
  slot = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x, ++slot) {
    const float value = slot < kMaxPerThread ? kept[slot] : again[row + i];
    normed[row + i] = __float2bfloat16(value * next * next_norm[i]);
  }
}

__device__ float gelu_tanh(float x) {
  constexpr float kRoot = 0.7978845608028654f;  // sqrt(2 / pi)
  return 0.5f * x * (1.0f + tanhf(kRoot * (x + 0.044715f * x * x * x)));
}

__global__ void gelu_gate_kernel(const __nv_bfloat16* gate_up, std::int64_t width, __nv_bfloat16* out) {
  wait_for_predecessor();
  let_successor_begin();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (i >= width) return;
  const std::int64_t row = blockIdx.x;
  const __nv_bfloat16* gate = gate_up + row * 2 * width;
  out[row * width + i] = __float2bfloat16(gelu_tanh(as_float(gate, i)) * as_float(gate, width + i));
}

}  // namespace

cudaError_t launch_rms_norm(const float* in, const float* weight, float epsilon, std::int64_t tokens,
                            std::int64_t width, void* out, cudaStream_t stream) {
  return launch_dependent(rms_norm_kernel, dim3(static_cast<unsigned>(tokens)), dim3(kThreads), 0, stream, in, weight,
                          epsilon, width, static_cast<__nv_bfloat16*>(out));
}

cudaError_t launch_residual_norm(const ResidualInput& x, cudaStream_t stream) {
  return launch_dependent(residual_norm_kernel, dim3(static_cast<unsigned>(x.tokens)), dim3(kThreads), 0, stream,
                          x.hidden, static_cast<const __nv_bfloat16*>(x.update), x.post_norm, x.scale, x.next_norm,
                          x.hidden_out, static_cast<__nv_bfloat16*>(x.normed), x.width, x.epsilon);
}

cudaError_t launch_gelu_gate(const void* gate_up, std::int64_t tokens, std::int64_t width, void* out,
                             cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>((width + kThreads - 1) / kThreads));
  return launch_dependent(gelu_gate_kernel, grid, dim3(kThreads), 0, stream, static_cast<const __nv_bfloat16*>(gate_up),
                          width, static_cast<__nv_bfloat16*>(out));
}

}  // namespace facet::cuda
