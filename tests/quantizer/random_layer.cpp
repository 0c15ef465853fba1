#include "random_layer.h"

#include <algorithm>
#include <cmath>

namespace facet::quantizer {

RandomLayer::RandomLayer(std::int64_t out, std::int64_t in, std::int64_t count, unsigned seed)
    : outputs(out), inputs(in), rows(count) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  for (std::int64_t i = 0; i < out * in; ++i) weights.push_back(0.05f * normal(random));
  // Every input is a mixture of a few common causes, with a size of its own between 1/8 and 8.
  const std::int64_t causes = in / 4 + 1;
  std::vector<float> mixture;
  for (std::int64_t i = 0; i < in * causes; ++i) mixture.push_back(normal(random));
  std::vector<float> size;
  for (std::int64_t i = 0; i < in; ++i) size.push_back(std::exp2(1.5f * std::clamp(normal(random), -2.0f, 2.0f)));
  std::vector<float> cause(static_cast<std::size_t>(causes));
  for (std::int64_t row = 0; row < count; ++row) {
    for (float& value : cause) value = normal(random);
    for (std::int64_t i = 0; i < in; ++i) {
      float sum = 0.3f * normal(random);
      for (std::int64_t c = 0; c < causes; ++c)
        sum += mixture[static_cast<std::size_t>(i * causes + c)] * cause[static_cast<std::size_t>(c)];
      x.push_back(sum * size[static_cast<std::size_t>(i)]);
    }
  }
}

Hessian RandomLayer::hessian() const {
  const Blas blas;
  Hessian made(inputs);
  constexpr std::int64_t kRows = 300;
  for (std::int64_t row = 0; row < rows; row += kRows)
    made.add(x.data() + row * inputs, std::min(kRows, rows - row), blas);
  return made;
}

std::vector<double> RandomLayer::exact_hessian() const {
  std::vector<double> sums(static_cast<std::size_t>(inputs * inputs), 0.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* values = x.data() + row * inputs;
    for (std::int64_t i = 0; i < inputs; ++i) {
      for (std::int64_t j = 0; j < inputs; ++j)
        sums[static_cast<std::size_t>(i * inputs + j)] += static_cast<double>(values[i]) * values[j];
    }
  }
  for (double& sum : sums) sum *= 2.0 / static_cast<double>(rows);
  return sums;
}

float value_of(const Quantized& quantized, const GptqOptions& options, std::int64_t columns, std::int64_t row,
               std::int64_t column) {
  return dequantize(quantized, {options.bits, options.symmetric, options.group_size}, columns, row, column);
}

double exact_error(const RandomLayer& layer, const std::vector<double>& hessian, const Quantized& quantized,
                   const GptqOptions& options) {
  const std::int64_t n = layer.inputs;
  double total = 0;
  std::vector<double> d(static_cast<std::size_t>(n));
  for (std::int64_t row = 0; row < layer.outputs; ++row) {
    for (std::int64_t i = 0; i < n; ++i)
      d[static_cast<std::size_t>(i)] = static_cast<double>(layer.weights[static_cast<std::size_t>(row * n + i)]) -
                                       value_of(quantized, options, n, row, i);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j)
        total += 0.5 * d[static_cast<std::size_t>(i)] * hessian[static_cast<std::size_t>(i * n + j)] *
                 d[static_cast<std::size_t>(j)];
    }
  }
  return total;
}

}  // namespace facet::quantizer
