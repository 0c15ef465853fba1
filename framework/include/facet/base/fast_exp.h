// e^x in float without branches, so that loops over it become vectors.
#pragma once

#include <bit>
#include <cstdint>

namespace facet {

// e^x within 3e-7 relative for x in [-87, 88]; arguments outside are clamped, NaN stays NaN. Range reduction by powers
// of two, then the Taylor polynomial of degree 7 on [-ln 2 / 2, ln 2 / 2], whose next term is below 6e-9.
inline float fast_exp(float x) {
  x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts
  const float polynomial =
      1 + r * (1 + r * (0.5f + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720 + r / 5040))))));
  const auto exponent = (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRound) + 127u) << 23;
  return polynomial * std::bit_cast<float>(exponent);
}

}  // namespace facet
