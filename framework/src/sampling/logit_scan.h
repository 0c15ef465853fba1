// One pass over a row of logits.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "facet/base/fast_exp.h"

namespace facet {

struct LogitScan {
  float max = -std::numeric_limits<float>::infinity();
  std::int32_t argmax = -1;  // lowest id of the maximum; -1 when all are minus infinity, or one is bad
  std::int64_t bad = 0;      // NaN or plus infinity
  std::int64_t first_bad = -1;
};

LogitScan scan_logits(std::span<const float> logits);

// Terms of a sum of exponentials: what is below e^-87 of the largest is nothing.
inline float exp_negative(float x) {
  return x > -87.0f ? fast_exp(x) : 0.0f;
}

}  // namespace facet
