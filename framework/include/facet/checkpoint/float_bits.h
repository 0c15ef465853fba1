// Conversions between float and the two 16-bit formats, bit exact.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>

#include "facet/sdk/numeric.h"

namespace facet {

using sdk::bf16_to_float;
using sdk::float_to_bf16;

inline float f16_to_float(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  // Subnormal halves are multiples of 2^-24, exact in float.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

// The half that is `value` exactly, nothing when there is none.
inline std::optional<std::uint16_t> exact_f16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1p-14f) {  // zero and subnormal halves, multiples of 2^-24
    const float units = magnitude * 0x1p24f;
    if (units != std::floor(units)) return std::nullopt;
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(units));
  }
  // 65504 is the largest half; NaN compares false.
  if (!(magnitude <= 65504.0f) || (bits & 0x1fffu) != 0) return std::nullopt;
  const std::uint32_t exponent = ((bits >> 23) & 0xffu) - 112u;
  return static_cast<std::uint16_t>(sign | (exponent << 10) | ((bits >> 13) & 0x3ffu));
}

}  // namespace facet
