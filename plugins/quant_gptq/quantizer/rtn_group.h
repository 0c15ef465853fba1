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

// Quantizes `count` finite values to codes[count].
GroupResult quantize_group(const float* values, std::int64_t count, const RtnOptions& options, std::uint8_t* codes);

// Nearest bf16 as a float, ties to even; 0 where the result would not be normal, infinity never (clamped to the largest
// bf16).
float round_scale(double scale);

}  // namespace facet::quantizer
