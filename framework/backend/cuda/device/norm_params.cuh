// What the norm kernels get: ResidualInput of backend.h for rows of `width` elements.
#pragma once

#include <cuda_bf16.h>

namespace facet::cuda {

struct NormParams {
  const float* hidden;
  const __nv_bfloat16* update;
  const float* post_norm;
  const float* next_norm;
  float* hidden_out;
  __nv_bfloat16* normed;
  float scale;
  float epsilon;
  int width;
};

__device__ inline float inverse_rms(float squares, int width, float epsilon) {
  return rsqrtf(squares / static_cast<float>(width) + epsilon);
}

}  // namespace facet::cuda
