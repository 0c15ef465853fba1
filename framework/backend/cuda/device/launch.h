// Launches of the device's kernels, plain C++ on both sides of nvcc. Activations are bf16, the residual stream f32. All
// kernels may begin while the one before still runs (programmatic dependent launch) and wait for it before they touch
// memory.
#pragma once

#include <cuda_runtime_api.h>

#include "facet/backend/backend.h"

namespace facet::cuda {

cudaError_t launch_rms_norm(const float* in, const float* weight, float epsilon, std::int64_t tokens,
                            std::int64_t width, void* out, cudaStream_t stream);
cudaError_t launch_residual_norm(const ResidualInput& input, cudaStream_t stream);
cudaError_t launch_gelu_gate(const void* gate_up, std::int64_t tokens, std::int64_t width, void* out,
                             cudaStream_t stream);

cudaError_t launch_rotary(const std::int32_t* positions, std::int64_t tokens, const float* inverse_frequency,
                          const RotaryAngles& angles, cudaStream_t stream);
cudaError_t launch_prepare_attention(const AttentionInput& input, cudaStream_t stream);

cudaError_t launch_embed(const abi::WeightView& table, const std::int32_t* ids, const std::int32_t* previous,
                         std::int64_t tokens, float scale, float* out, cudaStream_t stream);
cudaError_t launch_gather_rows(const float* in, const std::int32_t* rows, std::int64_t count, std::int64_t width,
                               float* out, cudaStream_t stream);
cudaError_t launch_soft_cap(float* values, std::int64_t count, float cap, cudaStream_t stream);
// scratch: 2 * kArgmaxBlocks * rows words that the kernels use between each other.
inline constexpr int kArgmaxBlocks = 64;
cudaError_t launch_argmax(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap, std::int32_t* ids,
                          void* scratch, cudaStream_t stream);
// TokenDraw::choose() for every row; vocabularies of up to 819,200.
cudaError_t launch_sample(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap,
                          const RowSampling* how, std::int32_t* ids, cudaStream_t stream);

}  // namespace facet::cuda
