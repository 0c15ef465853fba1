#include <bit>

#include "dense/dense_kernels.h"

namespace facet::linear {

namespace {

constexpr int kLanes = 8;

float widen(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

float dot(const std::uint16_t* w, const float* x, std::int64_t count) {
  float sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += widen(w[i + lane]) * x[i + lane];
  }
  for (; i < count; ++i) sums[i % kLanes] += widen(w[i]) * x[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

}  // namespace

void dense_generic(const DensePanel& panel) {
  const float* input = static_cast<const float*>(panel.input);
  for (std::int64_t row = 0; row < panel.rows; ++row) {
    for (int column = 0; column < panel.columns; ++column)
      panel.output[row * panel.output_stride + column] =
          dot(panel.weights[column], input + row * panel.input_stride, panel.in_features);
  }
}

}  // namespace facet::linear
