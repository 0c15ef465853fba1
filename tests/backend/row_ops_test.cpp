#include "cpu/row_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cpu/vector_math.h"
#include "facet/sdk/numeric.h"

namespace facet::cpu {
namespace {

constexpr double kEps = 0x1p-24;  // unit roundoff of float

std::vector<float> random_row(std::size_t width, std::uint32_t seed, float deviation = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> row(width);
  for (float& value : row) value = normal(generator);
  return row;
}

double exact_inverse_rms(const std::vector<float>& row, double epsilon) {
  double sum = 0;
  for (const float value : row) sum += static_cast<double>(value) * value;
  return 1.0 / std::sqrt(sum / static_cast<double>(row.size()) + epsilon);
}

class RowWidths : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(All, RowWidths, testing::Values(1, 2, 15, 16, 17, 64, 383, 384, 3840));

// Sum of squares in 16 lanes: at most width/16 + 4 additions in a row, halved by the root; then three products.
double norm_tolerance(std::size_t width) {
  return (static_cast<double>(width) / 32 + 8) * kEps;
}

TEST_P(RowWidths, NormMatchesDouble) {
  const std::vector<float> in = random_row(GetParam(), 1, 3.0f), weight = random_row(GetParam(), 2);
  std::vector<float> out(GetParam() + 1, std::numeric_limits<float>::quiet_NaN());
  norm_row(in.data(), weight.data(), 1e-6f, static_cast<std::int64_t>(GetParam()), out.data());
  const double factor = exact_inverse_rms(in, 1e-6);
  for (std::size_t i = 0; i < GetParam(); ++i) {
    const double expected = static_cast<double>(in[i]) * factor * static_cast<double>(weight[i]);
    EXPECT_NEAR(out[i], expected, std::fabs(expected) * norm_tolerance(GetParam())) << i;
  }
  EXPECT_TRUE(std::isnan(out.back())) << "wrote past the row";
}

TEST_P(RowWidths, ResidualMatchesDouble) {
  const std::vector<float> update = random_row(GetParam(), 3, 0.5f), weight = random_row(GetParam(), 4);
  const std::vector<float> before = random_row(GetParam(), 5);
  std::vector<float> hidden = before;
  residual_row(hidden.data(), update.data(), weight.data(), 0.75f, 1e-6f, static_cast<std::int64_t>(GetParam()),
               hidden.data());
  const double factor = exact_inverse_rms(update, 1e-6);
  for (std::size_t i = 0; i < GetParam(); ++i) {
    const double added = static_cast<double>(update[i]) * factor * static_cast<double>(weight[i]);
    const double scale = std::fabs(added) + std::fabs(static_cast<double>(before[i]));
    EXPECT_NEAR(hidden[i], (static_cast<double>(before[i]) + added) * 0.75, scale * norm_tolerance(GetParam())) << i;
  }
}

TEST(FastExp, RelativeErrorBelowTheStatedBound) {
  double worst = 0;
  for (int i = 0; i <= 1'000'000; ++i) {
    const float x = -87.0f + 175.0f * static_cast<float>(i) / 1e6f;
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::fabs(static_cast<double>(fast_exp(x)) - exact) / exact);
  }
  EXPECT_LT(worst, 3e-7);
}

TEST(Gelu, MatchesTheTanhForm) {
  std::vector<float> gate, up, out;
  for (int i = -2000; i <= 2000; ++i) {
    gate.push_back(static_cast<float>(i) / 100.0f);
    up.push_back(1.5f);
  }
  out.resize(gate.size());
  gelu_gate_row(gate.data(), up.data(), static_cast<std::int64_t>(gate.size()), out.data());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double x = gate[i];
    const double exact = 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x))) * 1.5;
    // The argument of the exponential carries its own rounding: |2u| * 2^-22 relative on the sigmoid's tail, small in
    // absolute terms.
    EXPECT_NEAR(out[i], exact, 1e-6 * std::max(1.0, std::fabs(exact))) << x;
  }
  EXPECT_EQ(out[2000], 0.0f);
}

TEST(SoftCap, MatchesDoubleAndKeepsNaN) {
  std::vector<float> values = {-1e6f, -100.0f, -30.0f, -1.0f, 0.0f,
                               1e-3f, 5.0f,    29.0f,  1e6f,  std::numeric_limits<float>::quiet_NaN()};
  const std::vector<float> before = values;
  soft_cap_row(values.data(), static_cast<std::int64_t>(values.size()), 30.0f);
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    // Absolute error of tanh around 1 is a few float steps; times the cap.
    EXPECT_NEAR(values[i], 30.0 * std::tanh(static_cast<double>(before[i]) / 30.0), 30.0 * 8 * kEps) << before[i];
  }
  // A NaN must reach the sampler, which fails the request.
  EXPECT_TRUE(std::isnan(values.back()));
}

TEST(Rotate, TurnsLivePairsAndLeavesTheRest) {
  const std::int64_t width = 16, live = 3;
  std::vector<float> x = random_row(16, 6);
  const std::vector<float> before = x;
  const float cosine[] = {0.6f, 1.0f, 0.0f}, sine[] = {0.8f, 0.0f, 1.0f};
  rotate_row(x.data(), cosine, sine, live, width);
  for (std::size_t i = 0; i < 8; ++i) {
    const double a = before[i], b = before[i + 8];
    const double c = i < 3 ? cosine[i] : 1.0, s = i < 3 ? sine[i] : 0.0;
    EXPECT_NEAR(x[i], a * c - b * s, 1e-6) << i;
    EXPECT_NEAR(x[i + 8], b * c + a * s, 1e-6) << i;
    if (i >= 3) {
      EXPECT_EQ(x[i], before[i]) << "a pair without frequency must pass unchanged";
    }
  }
}

TEST(StoreI8, HalfAStepAndZeroRows) {
  const std::vector<float> row = random_row(256, 7, 4.0f);
  std::vector<std::int8_t> codes(256);
  const float scale = store_i8_row(row.data(), 256, codes.data());
  for (std::size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(codes[i] * scale, row[i], 0.5001f * scale) << i;
  const std::vector<float> zeros(256, 0.0f);
  EXPECT_EQ(store_i8_row(zeros.data(), 256, codes.data()), 0.0f);
  for (const std::int8_t code : codes) EXPECT_EQ(code, 0);
}

TEST(StoreBf16, RoundsToNearestEven) {
  const std::vector<float> row = {1.0f, 1.00390625f, 1.01171875f, -3.0e38f, 65504.0f, 70000.0f};
  std::vector<std::uint16_t> out(row.size());
  store_bf16_row(row.data(), static_cast<std::int64_t>(row.size()), out.data());
  // 1 + 2^-8 and 1 + 3 * 2^-8 are ties between neighbours 2^-7 apart: the even one wins.
  EXPECT_EQ(sdk::bf16_to_float(out[1]), 1.0f);
  EXPECT_EQ(sdk::bf16_to_float(out[2]), 1.015625f);
  for (std::size_t i = 0; i < row.size(); ++i)
    EXPECT_NEAR(sdk::bf16_to_float(out[i]) / row[i], 1.0f, 0x1p-8f) << row[i];
}

}  // namespace
}  // namespace facet::cpu
