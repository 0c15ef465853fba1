// compare_logits against the definition, in long double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "facet/measure/logit_difference.h"

namespace facet {
namespace {

std::vector<long double> log_softmax(const std::vector<float>& logits) {
  const auto largest = static_cast<long double>(*std::max_element(logits.begin(), logits.end()));
  long double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<long double>(value) - largest);
  std::vector<long double> result;
  for (const float value : logits) result.push_back(static_cast<long double>(value) - largest - std::log(sum));
  return result;
}

double kl_by_definition(const std::vector<float>& reference, const std::vector<float>& variant) {
  const std::vector<long double> p = log_softmax(reference), q = log_softmax(variant);
  long double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  return static_cast<double>(sum);
}

std::vector<float> random_logits(std::size_t count, float deviation, std::mt19937& random) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> logits(count);
  for (float& value : logits) value = normal(random);
  return logits;
}

TEST(LogitDifference, EqualRowsAreExactlyEqual) {
  std::mt19937 random(1);
  for (const std::size_t count : {1u, 2u, 80u, 8192u}) {
    const std::vector<float> row = random_logits(count, 8, random);
    const LogitDifference difference = compare_logits(row, row);
    EXPECT_EQ(difference.kl, 0.0);
    EXPECT_TRUE(difference.same_top);
    EXPECT_EQ(difference.largest, 0.0);
  }
}

TEST(LogitDifference, AgreesWithTheDefinition) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const float noise : {1e-4f, 1e-2f, 1.0f, 30.0f}) {
    for (const std::size_t count : {2u, 100u, 8192u}) {
      const std::vector<float> reference = random_logits(count, 5, random);
      std::vector<float> variant = random_logits(count, noise, random);
      double largest = 0;
      for (std::size_t i = 0; i < count; ++i) {
        variant[i] += reference[i];
        largest = std::max(largest, std::abs(static_cast<double>(variant[i]) - static_cast<double>(reference[i])));
      }
      const LogitDifference difference = compare_logits(reference, variant);
      const double expected = kl_by_definition(reference, variant);
      // Every term is a product of exp() of a difference whose error is a few double roundings of logits below 200:
      // 1e-13 of the sum of |terms|, and the definition cancels terms that sum to at most |p log p/q|, here below 300.
      EXPECT_NEAR(difference.kl, expected, 1e-12 * std::max(1.0, std::abs(expected))) << noise << " " << count;
      EXPECT_GT(difference.kl, 0.0);
      EXPECT_EQ(difference.largest, largest);
      const auto top = [](const std::vector<float>& row) {
        return std::max_element(row.begin(), row.end()) - row.begin();
      };
      EXPECT_EQ(difference.same_top, top(reference) == top(variant));
    }
  }
}

// Two even outcomes moved apart by d have KL log(cosh(d / 2)), which is d^2 / 8 for small d.
TEST(LogitDifference, SmallDifferencesKeepTheirDigits) {
  for (const float d : {1e-3f, 1e-5f, 1e-6f}) {
    const std::vector<float> reference = {0, 0}, variant = {d, 0};
    const double half = static_cast<double>(d) / 2;
    EXPECT_NEAR(compare_logits(reference, variant).kl / (half * half / 2), 1.0, 1e-3) << d;
  }
}

TEST(LogitDifference, ExtremesStayFinite) {
  const std::vector<float> low = {0, -3e4f, 100}, high = {-3e4f, 3e4f, -3e4f};
  EXPECT_NEAR(compare_logits(low, high).kl, 6e4, 1e-6 * 6e4);  // log p/q where p is 1: 0 - (-6e4)
  EXPECT_NEAR(compare_logits(high, low).kl, 30100, 1e-6 * 30100);
  EXPECT_FALSE(compare_logits(low, high).same_top);
  EXPECT_EQ(compare_logits(low, high).largest, 6e4);
}

TEST(LogitDifference, TheLowestOfEqualLogitsIsTheTop) {
  EXPECT_TRUE(compare_logits(std::vector<float>{1, 2, 2}, std::vector<float>{0, 5, 5}).same_top);
  EXPECT_FALSE(compare_logits(std::vector<float>{1, 2, 2}, std::vector<float>{0, 4, 5}).same_top);
}

TEST(LogitDifference, NothingHidesANaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> good = {1, 2, 3};
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<float> row = {1, bad, 3};
    for (const LogitDifference& difference : {compare_logits(good, row), compare_logits(row, good)}) {
      EXPECT_TRUE(std::isnan(difference.kl) && std::isnan(difference.largest));
      EXPECT_FALSE(difference.same_top);
      LogitDifferenceSum sum;
      sum.add(difference);
      sum.add(compare_logits(good, good));
      EXPECT_TRUE(std::isnan(sum.mean_kl()) && std::isnan(sum.largest));
    }
  }
  EXPECT_TRUE(std::isnan(compare_logits(good, std::vector<float>{1, 2}).kl));
  EXPECT_TRUE(std::isnan(compare_logits({}, {}).kl));
}

TEST(LogitDifference, SumsAddUp) {
  LogitDifferenceSum a, b;
  EXPECT_TRUE(std::isnan(a.mean_kl()));
  a.add(LogitDifference{0.5, true, 2.0});
  a.add(LogitDifference{0.25, false, 1.0});
  b.add(LogitDifference{0.0, true, 3.0});
  a.add(b);
  EXPECT_EQ(a.predictions, 3);
  EXPECT_EQ(a.mean_kl(), 0.25);
  EXPECT_EQ(a.top1_agreement(), 2.0 / 3.0);
  EXPECT_EQ(a.largest, 3.0);
}

}  // namespace
}  // namespace facet
