#include "quant_gptq/cuda/reference_cuda/dequant_rows.h"

#include <cuda_bf16.h>

namespace facet::linear {

namespace {

__global__ void dequantize(const PlainWeights w, __nv_bfloat16* out, std::int64_t stride) {
  const std::int64_t count = w.out_features * w.in_features;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::int64_t row = i / w.in_features;
    const std::int64_t column = i % w.in_features;
    const std::int64_t group = row * w.groups + column / w.group_size;
    const std::uint8_t* codes = w.codes + row * w.row_bytes;
    const int code = w.bits == 8 ? codes[column] : (codes[column / 2] >> (4 * (column % 2))) & 15;
    const int zero = w.zeros != nullptr ? w.zeros[group] : w.mean;
    out[row * stride + column] = __float2bfloat16_rn(static_cast<float>(code - zero) * w.scales[group]);
  }
}

}  // namespace

cudaError_t dequantize_rows(const PlainWeights& weights, void* out, std::int64_t stride, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const std::int64_t blocks = (weights.out_features * weights.in_features + kThreads - 1) / kThreads;
  constexpr std::int64_t kMostBlocks = 1 << 16;
  dequantize<<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0, stream>>>(
      weights, static_cast<__nv_bfloat16*>(out), stride);
  return cudaGetLastError();
}

}  // namespace facet::linear
