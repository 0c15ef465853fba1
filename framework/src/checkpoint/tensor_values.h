// Single values out of mapped tensors, whatever their alignment.
#pragma once

#include <cstdint>
#include <cstring>

#include "facet/checkpoint/float_bits.h"
#include "facet/checkpoint/tensor.h"

namespace facet::checkpoint_detail {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

inline std::uint16_t load_u16(const std::byte* at) {
  std::uint16_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

inline std::uint32_t load_u32(const std::byte* at) {
  std::uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Element `index` of an F32, BF16 or F16 tensor.
inline float load_float(const Tensor& tensor, std::int64_t index) {
  if (tensor.type == TensorType::f32) {
    float value;
    std::memcpy(&value, tensor.data + 4 * index, sizeof value);
    return value;
  }
  const std::uint16_t bits = load_u16(tensor.data + 2 * index);
  return tensor.type == TensorType::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

}  // namespace facet::checkpoint_detail
