// bf16 and small arithmetic shared by kernels, written so that every instruction set gives the same bits.
#pragma once

#include <bit>
#include <cstdint>

namespace facet::sdk {

// Exact: bf16 is the upper half of a float.
inline float bf16_to_float(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

// Round to nearest, ties to even; NaN stays NaN (its payload is cut, a quiet bit is set).
inline std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step;
}
constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return ceil_div(value, step) * step;
}

}  // namespace facet::sdk
