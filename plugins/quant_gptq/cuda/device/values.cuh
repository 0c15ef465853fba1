// Small numbers and functions of the kernels that need no instruction by name.
#pragma once

#include <cstdint>

namespace facet::linear {

__device__ __forceinline__ float low_bf16(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_bf16(std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ float gelu_tanh(float value) {
  return __fdividef(value, 1.0f + __expf(-1.5957691216f * (value + 0.044715f * value * value * value)));
}

}  // namespace facet::linear
