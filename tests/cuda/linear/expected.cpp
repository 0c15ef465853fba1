#include "expected.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace facet::test {

namespace {

double gelu(double value) {
  return 0.5 * value * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (value + 0.044715 * value * value * value)));
}

}  // namespace

std::vector<std::uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(),
                 [](float value) { return bf16_bits(static_cast<double>(value)); });
  return bits;
}

std::vector<float> bf16_inputs(std::int64_t count, std::mt19937_64& random) {
  std::normal_distribution<double> normal(0.0, 1.0);
  std::vector<float> inputs(static_cast<std::size_t>(count));
  for (float& input : inputs) {
    const double scale = random() % 100 == 0 ? 1000.0 : 1.0;
    input = static_cast<float>(bf16_value(bf16_bits(scale * normal(random))));
  }
  return inputs;
}

Expected expected_product(const std::vector<float>& inputs, const std::vector<RandomPart>& parts,
                          const WeightShape& shape, Rounding rounding) {
  const auto in = static_cast<std::size_t>(shape.in_features);
  const auto out = static_cast<std::size_t>(shape.out_features);
  const std::size_t rows = inputs.size() / in;
  const double eps = std::numeric_limits<float>::epsilon();
  std::vector<double> largest(rows * in);  // |x| of the 128 inputs around
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t begin = 0; begin < in; begin += 128) {
      const std::size_t end = std::min(in, begin + 128);
      double most = 0;
      for (std::size_t k = begin; k < end; ++k) most = std::max(most, std::abs(double{inputs[row * in + k]}));
      std::fill(largest.begin() + static_cast<std::ptrdiff_t>(row * in + begin),
                largest.begin() + static_cast<std::ptrdiff_t>(row * in + end), most);
    }
  }
  Expected expected{std::vector<double>(rows * out), std::vector<double>(rows * out)};
  std::size_t column = 0;
  std::vector<double> weights(in);
  std::vector<double> magnitudes(in);
  for (const RandomPart& part : parts) {
    for (std::int64_t part_row = 0; part_row < part.view().out_features; ++part_row, ++column) {
      for (std::size_t k = 0; k < in; ++k) {
        weights[k] = part.weight(part_row, static_cast<std::int64_t>(k));
        magnitudes[k] = part.magnitude(part_row, static_cast<std::int64_t>(k));
      }
      for (std::size_t row = 0; row < rows; ++row) {
        double exact = 0;
        double sum = 0;
        double rounded = 0;
        for (std::size_t k = 0; k < in; ++k) {
          const double x = double{inputs[row * in + k]};
          exact += x * weights[k];
          sum += std::abs(x) * magnitudes[k];
          rounded +=
              rounding.weight * std::abs(x * weights[k]) + rounding.segment * largest[row * in + k] * magnitudes[k];
        }
        expected.exact[row * out + column] = exact;
        expected.allowed[row * out + column] = (static_cast<double>(in) + 8) * eps * sum + rounded;
      }
    }
  }
  return expected;
}

void expect_close(const std::vector<float>& outputs, const Expected& expected, abi::DType output) {
  ASSERT_EQ(outputs.size(), expected.exact.size());
  const double step = output == abi::DType::f32 ? 0x1p-23 : 0x1p-8;
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const double allowed = expected.allowed[i] * (1 + step) + step * std::abs(expected.exact[i]) + 1e-30;
    const double error = std::abs(double{outputs[i]} - expected.exact[i]) / allowed;
    if (error <= worst) continue;
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    at = i;
  }
  EXPECT_LE(worst, 1.0) << "worst at element " << at << " of " << outputs.size() << ": " << outputs[at]
                        << " instead of " << expected.exact[at];
}

// |gelu'| is below 1.13.
Expected gated(const Expected& product, std::size_t rows) {
  const std::size_t columns = product.exact.size() / rows;
  const std::size_t half = columns / 2;
  Expected expected;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < half; ++i) {
      const std::size_t gate = row * columns + i;
      const double activated = gelu(product.exact[gate]);
      const double up = product.exact[gate + half];
      expected.exact.push_back(activated * up);
      // The approximate exponential and division of the device: a few steps of fp32, relative to |gate|.
      const double activated_error = 1.13 * product.allowed[gate] + 0x1p-19 * std::abs(product.exact[gate]);
      expected.allowed.push_back(activated_error * (std::abs(up) + product.allowed[gate + half]) +
                                 std::abs(activated) * product.allowed[gate + half]);
    }
  }
  return expected;
}

RandomResidual random_residual(std::int64_t rows, std::int64_t in_features, bool updated, bool cancelled,
                               std::mt19937_64& random) {
  const auto in = static_cast<std::size_t>(in_features);
  RandomResidual made;
  ResidualInputs& residual = made.residual;
  residual.hidden = bf16_inputs(rows * in_features, random);
  if (updated) residual.update = bf16_inputs(rows * in_features, random);
  std::uniform_real_distribution<float> norm(0.2f, 5.0f);
  for (std::size_t k = 0; k < in; ++k) {
    residual.post_norm.push_back(norm(random));
    residual.next_norm.push_back(norm(random));
  }
  residual.scale = 0.75f;
  made.inputs.resize(residual.hidden.size());
  made.hidden.resize(residual.hidden.size());
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    const auto inverse = [&](const auto& values) {
      double sum = 0;
      for (std::size_t k = 0; k < in; ++k) sum += std::pow(double{values[row * in + k]}, 2);
      return 1.0 / std::sqrt(sum / static_cast<double>(in) + 1e-6);
    };
    const double first = updated ? inverse(residual.update) : 0.0;
    for (std::size_t k = 0; k < in; ++k) {
      const std::size_t i = row * in + k;
      if (cancelled)
        residual.hidden[i] = static_cast<float>(-double{residual.update[i]} * first * double{residual.post_norm[k]} *
                                                (1.0 + 0x1p-7 * (random() % 2 == 0 ? 1.0 : -1.0)));
      made.hidden[i] = double{residual.hidden[i]};
      if (updated)
        made.hidden[i] = (made.hidden[i] + double{residual.update[i]} * first * double{residual.post_norm[k]}) * 0.75;
    }
    const double second = inverse(made.hidden);
    for (std::size_t k = 0; k < in; ++k)
      made.inputs[row * in + k] =
          static_cast<float>(made.hidden[row * in + k] * second * double{residual.next_norm[k]});
  }
  // The norms: sums of in_features squares and an approximate root, relative to each input; then fixed point.
  made.norm_error = (static_cast<double>(in) + 16.0) * (cancelled ? 0x1p-15 : 0x1p-23);
  return made;
}

void expect_hidden_close(const RandomResidual& made) {
  const std::vector<double>& hidden = made.hidden;
  const double sums = static_cast<double>(made.residual.next_norm.size()) + 16.0;
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    const double parts_of = std::abs(double{made.residual.hidden[i]}) + std::abs(hidden[i]);
    ASSERT_NEAR(made.residual.hidden_out[i], hidden[i], sums * 0x1p-21 * parts_of + 1e-6) << "hidden_out " << i;
  }
}

}  // namespace facet::test
