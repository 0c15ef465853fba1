// Row operations of the CPU backend, written as plain loops over 16 lanes that compilers vectorise without changing the
// order of sums.
#pragma once

#include <cmath>
#include <cstdint>

#include "facet/base/fast_exp.h"

// One clone of a function for each instruction set, chosen by the loader. Sanitizers start after the loader's choice
// and do not stand it.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(FACET_NO_CLONES)
#define FACET_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FACET_CLONES
#endif

namespace facet::cpu {

inline constexpr std::int64_t kLanes = 16;

// Sum of squares; the order depends on `width` alone.
inline float sum_of_squares(const float* x, std::int64_t width) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  float sum = 0;
  for (; i < width; ++i) sum += x[i] * x[i];
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return sum + lanes[0];
}

inline float inverse_rms(const float* x, std::int64_t width, float epsilon) {
  return 1.0f / std::sqrt(sum_of_squares(x, width) / static_cast<float>(width) + epsilon);
}

// tanh form of GELU: x * sigmoid(2 u) with u = sqrt(2/pi) (x + 0.044715 x^3), the same function as 0.5 x (1 + tanh u).
inline float gelu_tanh(float x) {
  const float u = 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1.0f + fast_exp(-2.0f * u));
}

// tanh through one exponential: 1 - 2 / (e^{2x} + 1). Near zero the absolute error is that of fp32 around 1, which is
// what a soft cap of logits needs.
inline float fast_tanh(float x) {
  return 1.0f - 2.0f / (fast_exp(2.0f * x) + 1.0f);
}

}  // namespace facet::cpu
