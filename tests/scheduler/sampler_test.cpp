// The sampler against exact probabilities, and its behaviour on broken input.
#include "facet/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "facet/base/error.h"

namespace facet {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(std::uint64_t seed, std::size_t count, float spread) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// The documented order, written as plainly as possible.
std::vector<double> exact_probabilities(const std::vector<float>& logits, const SamplingParams& params,
                                        const std::vector<std::int32_t>& seen) {
  std::vector<double> adjusted(logits.begin(), logits.end());
  for (const std::int32_t token : std::set<std::int32_t>(seen.begin(), seen.end())) {
    double& logit = adjusted[static_cast<std::size_t>(token)];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  }
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return adjusted[a] > adjusted[b]; });
  std::vector<double> weights;
  for (const std::size_t id : order)
    weights.push_back(std::exp((adjusted[id] - adjusted[order[0]]) / params.temperature));
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < weights.size())
    weights.resize(static_cast<std::size_t>(params.top_k));
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double mass = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    mass += weights[i];
    if (params.top_p < 1 && mass >= params.top_p * total) weights.resize(i + 1);
  }
  while (weights.back() < params.min_p * weights.front()) weights.pop_back();
  total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> probabilities(logits.size(), 0.0);
  for (std::size_t i = 0; i < weights.size(); ++i) probabilities[order[i]] = weights[i] / total;
  return probabilities;
}

// The chi-square statistic as a standard normal deviate (Wilson and Hilferty 1931); cells of fewer than five expected
// draws are joined.
double chi_square_deviate(const std::vector<double>& probabilities, const std::vector<std::int64_t>& counts,
                          std::int64_t draws) {
  double statistic = 0;
  int cells = 0;
  double rest_expected = 0;
  double rest_seen = 0;
  const auto add = [&](double expected, double seen) {
    statistic += (seen - expected) * (seen - expected) / expected;
    ++cells;
  };
  for (std::size_t id = 0; id < counts.size(); ++id) {
    const double expected = probabilities[id] * static_cast<double>(draws);
    if (expected >= 5) {
      add(expected, static_cast<double>(counts[id]));
    } else {
      rest_expected += expected;
      rest_seen += static_cast<double>(counts[id]);
    }
  }
  if (rest_expected >= 5) add(rest_expected, rest_seen);
  const double freedom = cells - 1;
  if (freedom < 1) return 0;
  const double spread = 2 / (9 * freedom);
  return (std::cbrt(statistic / freedom) - (1 - spread)) / std::sqrt(spread);
}

struct Distribution {
  const char* name;
  SamplingParams params;
};

class Distributions : public testing::TestWithParam<Distribution> {};

TEST_P(Distributions, DrawsFollowTheExactProbabilities) {
  constexpr std::int64_t kDraws = 40000;
  const std::vector<float> logits = random_logits(11, 60, 2.0f);
  const std::vector<std::int32_t> prompt = {3, 7, 7, 20, 59};
  const std::vector<double> exact = exact_probabilities(logits, GetParam().params, prompt);
  std::vector<std::int64_t> counts(logits.size(), 0);
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    Sampler sampler(GetParam().params, seed);
    const auto result = sampler.sample(logits, prompt, {});
    ASSERT_TRUE(result.ok) << result.error;
    ++counts[static_cast<std::size_t>(result.id)];
  }
  for (std::size_t id = 0; id < counts.size(); ++id) {
    if (exact[id] == 0) {
      EXPECT_EQ(counts[id], 0) << "token " << id << " is filtered out";
    }
  }
  // 4.5 deviations: one chance in 300,000 that an honest sampler fails.
  EXPECT_LT(std::abs(chi_square_deviate(exact, counts, kDraws)), 4.5);
}

SamplingParams params(double temperature, std::int64_t top_k, double top_p, double min_p, double penalty = 1) {
  return {temperature, top_k, top_p, min_p, std::nullopt, penalty};
}

INSTANTIATE_TEST_SUITE_P(
    Filters, Distributions,
    testing::Values(Distribution{"plain", params(1, 0, 1, 0)}, Distribution{"cold", params(0.4, 0, 1, 0)},
                    Distribution{"hot", params(3, 0, 1, 0)}, Distribution{"top_k", params(1, 9, 1, 0)},
                    Distribution{"top_k_one", params(1, 1, 1, 0)}, Distribution{"top_p", params(1, 0, 0.8, 0)},
                    Distribution{"min_p", params(1, 0, 1, 0.05)},
                    Distribution{"top_k_then_top_p", params(1.5, 20, 0.7, 0)},
                    Distribution{"all", params(2, 30, 0.9, 0.1, 1.3)}, Distribution{"penalty", params(1, 0, 1, 0, 2)}),
    [](const auto& distribution) { return std::string(distribution.param.name); });

// One request's outputs in a row must be as independent as those of many requests.
TEST(Sampler, OutputsOfOneRequestFollowTheDistribution) {
  constexpr std::int64_t kDraws = 20000;
  const std::vector<float> logits = random_logits(5, 16, 1.0f);
  Sampler sampler(params(1, 0, 1, 0), 42);
  const std::vector<std::int32_t> generated(static_cast<std::size_t>(kDraws), 0);
  std::vector<std::int64_t> counts(16, 0);
  std::vector<std::int64_t> pairs(256, 0);
  std::int32_t previous = 0;
  for (std::int64_t i = 0; i < kDraws; ++i) {
    const auto result = sampler.sample(logits, {}, std::span(generated).first(static_cast<std::size_t>(i)));
    ++counts[static_cast<std::size_t>(result.id)];
    if (i > 0) ++pairs[static_cast<std::size_t>(previous * 16 + result.id)];
    previous = result.id;
  }
  const auto exact = exact_probabilities(logits, sampler.params(), {});
  EXPECT_LT(std::abs(chi_square_deviate(exact, counts, kDraws)), 4.5);
  std::vector<double> exact_pairs(256);
  for (std::size_t i = 0; i < 256; ++i) exact_pairs[i] = exact[i / 16] * exact[i % 16];
  EXPECT_LT(std::abs(chi_square_deviate(exact_pairs, pairs, kDraws - 1)), 4.5);
}

// Large enough for the partial selections: a heap, nth_element, and several rounds of sorting.
TEST(Sampler, LargeVocabulariesAreFilteredExactly) {
  constexpr std::int64_t kDraws = 4000;
  const std::vector<float> logits = random_logits(3, 6000, 2.0f);
  for (const SamplingParams& given : {params(1, 40, 1, 0), params(1, 1500, 1, 0), params(1, 0, 0.3, 0),
                                      params(1, 1500, 0.6, 0.001), params(1, 0, 0.999, 0)}) {
    SCOPED_TRACE(fmt::format("k {} p {} min {}", given.top_k, given.top_p, given.min_p));
    const auto exact = exact_probabilities(logits, given, {});
    std::vector<std::int64_t> counts(logits.size(), 0);
    for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
      const auto result = Sampler(given, seed).sample(logits, {}, {});
      ASSERT_TRUE(result.ok);
      ASSERT_GT(exact[static_cast<std::size_t>(result.id)], 0) << "seed " << seed;
      ++counts[static_cast<std::size_t>(result.id)];
    }
    EXPECT_LT(std::abs(chi_square_deviate(exact, counts, kDraws)), 4.5);
  }
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheBest) {
  Sampler sampler({}, 1);
  const std::vector<float> logits = {-kInf, 2, 5, 5, -1};
  const auto result = sampler.sample(logits, {}, {});
  ASSERT_TRUE(result.ok) << result.error;
  EXPECT_EQ(result.id, 2);
  const double sum = std::exp(-3.0) + 2 + std::exp(-6.0);
  // Three roundings to float near 1.
  EXPECT_NEAR(log_probability(logits, result.id), -std::log(sum), 4e-7);
}

TEST(Sampler, LogProbabilityOfLargeVocabulariesIsExact) {
  for (const std::size_t count : {1u, 15u, 17u, 1023u, 1025u, 262144u}) {
    SCOPED_TRACE(count);
    std::vector<float> logits = random_logits(count, count, 2.0f);
    if (count > 20) logits[3] = -kInf;
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    Sampler sampler(params(1, 0, 1, 0), count);
    const auto result = sampler.sample(logits, {}, {});
    ASSERT_TRUE(result.ok) << result.error;
    // e^x within 2e-7 and float sums of 64 terms (64 x 2^-24) relative, then one float of at most 20.
    EXPECT_NEAR(log_probability(logits, result.id),
                static_cast<double>(logits[static_cast<std::size_t>(result.id)]) - std::log(sum),
                2e-7 + 64 * 0x1p-24 + 20 * 0x1p-24);
  }
}

TEST(Sampler, CutsThroughTiesByLowestId) {
  const std::vector<float> logits = {1, 4, 4, 4, 4, 0};
  for (const SamplingParams& given : {params(1, 2, 1, 0), params(1, 0, 0.45, 0)}) {
    std::set<std::int32_t> seen;
    for (std::uint64_t seed = 0; seed < 200; ++seed) seen.insert(Sampler(given, seed).sample(logits, {}, {}).id);
    EXPECT_EQ(seen, (std::set<std::int32_t>{1, 2}));
  }
}

TEST(Sampler, PenaltyCountsPromptAndOutputOnce) {
  const std::vector<float> logits = {3.0f, 2.5f, 2.4f, -1.0f};
  SamplingParams given;
  given.repetition_penalty = 1.3;
  Sampler sampler(given, 1);
  EXPECT_EQ(sampler.sample(logits, {}, {}).id, 0);
  const std::vector<std::int32_t> first = {0, 0, 0};
  const std::vector<std::int32_t> second = {1};
  EXPECT_EQ(sampler.sample(logits, first, {}).id, 1);  // 3 / 1.3 = 2.31; twice would be 1.78
  EXPECT_EQ(sampler.sample(logits, first, second).id, 2);
  EXPECT_EQ(sampler.sample(logits, {}, first).id, 1);
  const std::vector<std::int32_t> outside = {4};
  EXPECT_THAT(sampler.sample(logits, outside, {}).error, HasSubstr("token 4 is outside the vocabulary of 4"));
}

TEST(Sampler, BrokenLogitsFailWithCountAndFirstToken) {
  std::vector<float> logits(100, 0.5f);
  logits[17] = logits[90] = kNan;
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler(params(temperature, 0, 1, 0), 1);
    const auto broken = sampler.sample(logits, {}, {});
    EXPECT_FALSE(broken.ok);
    EXPECT_EQ(broken.id, -1);
    EXPECT_THAT(broken.error, HasSubstr("2 of 100 logits of output 0 are NaN or infinite, the first at token 17"));
    EXPECT_FALSE(sampler.sample(std::vector<float>{1, kInf}, {}, {}).ok);
    EXPECT_THAT(sampler.sample(std::vector<float>(5, -kInf), {}, {}).error, HasSubstr("none of the 5 tokens"));
    EXPECT_FALSE(sampler.sample({}, {}, {}).ok);
    // The next row is served.
    EXPECT_TRUE(sampler.sample(std::vector<float>(100, 0.5f), {}, {}).ok);
  }
}

// A score must not hide a NaN: e^NaN is not 0.
TEST(Sampler, LogProbabilityOfBrokenLogitsIsNaN) {
  for (const float bad : {kNan, kInf}) {
    std::vector<float> logits = random_logits(3, 5000, 2.0f);
    EXPECT_TRUE(std::isfinite(log_probability(logits, 7)));
    logits[4999] = bad;
    EXPECT_TRUE(std::isnan(log_probability(logits, 7)));
  }
}

TEST(Sampler, ExtremesStayFinite) {
  const float big = std::numeric_limits<float>::max();
  const std::vector<float> logits = {-big, big, 0, -kInf};
  for (const double temperature : {1e-300, 1e-3, 1.0, 100.0}) {
    SamplingParams given = params(temperature, 0, 1, 0, 0.01);
    const std::vector<std::int32_t> prompt = {0, 1, 3};
    const auto result = Sampler(given, 9).sample(logits, prompt, {});
    ASSERT_TRUE(result.ok) << result.error;
    EXPECT_EQ(result.id, 1);
    EXPECT_EQ(log_probability(logits, result.id), 0);
  }
}

TEST(Sampler, ADrawDependsOnSeedAndIndexOnly) {
  const std::vector<float> logits = random_logits(8, 500, 1.0f);
  const SamplingParams given = params(1, 50, 0.95, 0);
  const std::vector<std::int32_t> prompt = {1, 2, 3};
  Sampler straight(given, 7);
  std::vector<std::int32_t> generated;
  for (int i = 0; i < 30; ++i) generated.push_back(straight.sample(logits, prompt, generated).id);
  // Resumed after 12 outputs by a new sampler, with other requests in between.
  Sampler resumed(given, 7);
  Sampler neighbour(given, 8);
  std::vector<std::int32_t> again(generated.begin(), generated.begin() + 12);
  std::vector<std::int32_t> other;
  while (again.size() < 30) {
    other.push_back(neighbour.sample(logits, prompt, other).id);
    again.push_back(resumed.sample(logits, prompt, again).id);
  }
  EXPECT_EQ(again, generated);
  EXPECT_NE(other, std::vector<std::int32_t>(generated.begin(), generated.begin() + 18));
  // The parameter wins over the request's own seed.
  SamplingParams seeded = given;
  seeded.seed = 7;
  EXPECT_EQ(Sampler(seeded, 999).sample(logits, prompt, {}).id, generated[0]);
}

TEST(Sampler, ChoicesOfOneRequestHaveTheirOwnSeeds) {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t seed : {7u, 8u})
    for (std::uint64_t index = 0; index < 100; ++index) seeds.insert(choice_seed(seed, index));
  EXPECT_EQ(seeds.size(), 200u);
  EXPECT_EQ(choice_seed(7, 0), 7u);
}

TEST(SamplingParams, EveryFaultIsNamedWithItsRange) {
  EXPECT_NO_THROW(validate({}));
  SamplingParams bad;
  bad.temperature = std::numeric_limits<double>::quiet_NaN();
  bad.top_k = -1;
  bad.top_p = 0;
  bad.min_p = 1.5;
  bad.repetition_penalty = std::numeric_limits<double>::infinity();
  try {
    validate(bad);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_THAT(error.what(), HasSubstr("temperature = nan is not in [0, 100]"));
    EXPECT_THAT(error.what(), HasSubstr("top_k = -1"));
    EXPECT_THAT(error.what(), HasSubstr("top_p = 0 is not in (0, 1]"));
    EXPECT_THAT(error.what(), HasSubstr("min_p = 1.5 is not in [0, 1]"));
    EXPECT_THAT(error.what(), HasSubstr("repetition_penalty = inf"));
  }
  for (const double temperature : {-0.1, 101.0, static_cast<double>(kInf)})
    EXPECT_THROW(Sampler(params(temperature, 0, 1, 0), 1), Error);
}

}  // namespace
}  // namespace facet
