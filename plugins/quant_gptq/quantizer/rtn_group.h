// One group of weights: choosing its scale, zero point and codes.
#pragma once

#include <cstdint>

#include "facet/quantizer/rtn.h"

namespace facet::quantizer {

struct GroupResult {
  float scale = 0;
  int zero = 0;      // zero code
  double error = 0;  // sum of squared errors
};

// The grid of a format: codes 0 .. largest, and the zero code of symmetric groups.
struct Grid {
  int largest;
  int middle;
};
inline Grid grid_of(int bits) {
  return bits == 4 ? Grid{15, 8} : Grid{255, 128};
}

// Scale and zero code for `count` finite values. `weights` [count], >= 0, say what a squared error of each value counts
// in the search; null: all count 1.
struct GroupScale {
  float scale = 0;
  int zero = 0;
};
GroupScale choose_scale(const float* values, const float* weights, std::int64_t count, const RtnOptions& options);

// Quantizes `count` finite values to codes[count].
GroupResult quantize_group(const float* values, std::int64_t count, const RtnOptions& options, std::uint8_t* codes);

// Adding and subtracting 1.5 * 2^23 rounds to the nearest whole number, ties to even, for |x| < 2^22; unlike rintf it
// becomes two vector instructions on every x86-64. Quotients are clamped far below that first.
inline constexpr float kRound = 12582912.0f;

// By value, so that it becomes two vector instructions; std::clamp returns a reference and stays a pair of branches.
inline float clamp_to(float value, float low, float high) {
  const float above = value > low ? value : low;
  return above < high ? above : high;
}

// Code of one value as a float: whole, within [0, largest]. scale > 0.
inline float code_of(float value, float scale, float zero, float largest) {
  const float quotient = clamp_to(value / scale, -1024.0f, 1024.0f);
  const float rounded = (quotient + kRound) - kRound;
  return clamp_to(rounded + zero, 0.0f, largest);
}

// Nearest bf16 as a float, ties to even; 0 where the result would not be normal, infinity never (clamped to the largest
// bf16).
float round_scale(double scale);

}  // namespace facet::quantizer
