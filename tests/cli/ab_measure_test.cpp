// The figures of a comparison against known answers.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "facet/measure/equivalence.h"
#include "facet/measure/machine_limits.h"
#include "facet/measure/paired_ratio.h"
#include "facet/measure/percentiles.h"

namespace facet {
namespace {

constexpr std::uint64_t kSeed = 20240611;

TEST(Percentiles, KnownAnswers) {
  EXPECT_FALSE(percentiles({}).has_value());
  const auto one = percentiles({7.0});
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->p50, 7.0);
  EXPECT_EQ(one->p99, 7.0);
  // 0..100 in an order of no help: percentile p is p.
  std::vector<double> values;
  for (int i = 0; i <= 100; ++i) values.push_back((i * 37) % 101);
  const auto many = percentiles(values);
  ASSERT_TRUE(many.has_value());
  EXPECT_NEAR(many->p50, 50, 1e-12);
  EXPECT_NEAR(many->p90, 90, 1e-12);
  EXPECT_NEAR(many->p99, 99, 1e-12);
  EXPECT_NEAR(percentiles({1.0, 2.0})->p90, 1.9, 1e-12);
  EXPECT_NEAR(median({4.0, 1.0, 3.0, 2.0}), 2.5, 1e-12);
  EXPECT_EQ(median({}), 0.0);
}

TEST(PairedRatio, OneRoundHasNoInterval) {
  const PairedRatio ratio = paired_ratio({{0.5, 0.4, 0.6}});
  EXPECT_NEAR(ratio.ratio, 0.5, 1e-12);
  EXPECT_EQ(ratio.pairs, 3);
  EXPECT_FALSE(ratio.has_interval);
  EXPECT_EQ(verdict(ratio), Verdict::no_verdict);
}

TEST(PairedRatio, NothingMeasured) {
  const PairedRatio ratio = paired_ratio({{}, {}});
  EXPECT_EQ(ratio.pairs, 0);
  EXPECT_EQ(ratio.rounds, 0);
  EXPECT_EQ(verdict(ratio), Verdict::no_verdict);
}

TEST(PairedRatio, Ties) {
  const PairedRatio same = paired_ratio({{1.0}, {1.0}, {1.0}});
  EXPECT_EQ(same.low, 1.0);
  EXPECT_EQ(same.high, 1.0);
  EXPECT_EQ(verdict(same), Verdict::no_difference_shown);
  const PairedRatio half = paired_ratio({{0.5}, {0.5}, {0.5}});
  EXPECT_NEAR(half.high, 0.5, 1e-12);
  EXPECT_EQ(verdict(half), Verdict::faster);
  const PairedRatio twice = paired_ratio({{2.0}, {}, {2.0}});
  EXPECT_EQ(twice.rounds, 2);
  EXPECT_EQ(verdict(twice), Verdict::slower);
}

// Student's interval by hand: logs 0, ln 2 have mean ln(2)/2 and standard error ln(2)/2; t(1) = 12.706.
TEST(PairedRatio, TwoRoundsByHand) {
  const PairedRatio ratio = paired_ratio({{1.0}, {2.0}});
  const double middle = std::log(2.0) / 2;
  EXPECT_NEAR(ratio.ratio, 1.5, 1e-12);
  EXPECT_NEAR(ratio.low, std::exp(middle - 12.706 * middle), 1e-9);
  EXPECT_NEAR(ratio.high, std::exp(middle + 12.706 * middle), 1e-6);
}

TEST(PairedRatio, SameSeedSameInterval) {
  const std::vector<std::vector<double>> rounds{{0.9, 1.1}, {1.0, 1.3}, {0.8, 0.7}, {1.2, 1.0}};
  const PairedRatio a = paired_ratio(rounds, 5), b = paired_ratio(rounds, 5);
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
}

struct Coverage {
  double covered = 0;  // share of trials whose interval holds the truth
  double decided = 0;  // share with a verdict faster or slower
};

// Rounds share a disturbance (log-normal, 5 %), requests add their own (10 %).
Coverage simulate(int rounds, int requests, double truth, std::mt19937_64& random) {
  constexpr int kTrials = 300;
  std::normal_distribution<double> shared(0, 0.05), own(0, 0.10);
  int covered = 0, decided = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<std::vector<double>> ratios(static_cast<std::size_t>(rounds));
    for (std::vector<double>& round : ratios) {
      const double disturbance = shared(random);
      for (int i = 0; i < requests; ++i) round.push_back(truth * std::exp(disturbance + own(random)));
    }
    const PairedRatio ratio = paired_ratio(ratios, static_cast<std::uint64_t>(trial));
    covered += ratio.low <= truth && truth <= ratio.high ? 1 : 0;
    const Verdict result = verdict(ratio);
    decided += result == Verdict::faster || result == Verdict::slower ? 1 : 0;
  }
  return {covered / double{kTrials}, decided / double{kTrials}};
}

// 95 % nominal; 300 trials have a standard error of 1.3 %, so four of them below is 0.90.
TEST(PairedRatio, CoversTheTruth) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (const int rounds : {2, 3, 5, 12}) {
    for (const int requests : {1, 6}) {
      SCOPED_TRACE(testing::Message() << rounds << " rounds of " << requests);
      EXPECT_GE(simulate(rounds, requests, 1.3, random).covered, 0.90);
      // Equal variants: a verdict is the mistake, 5 % nominal, plus four standard errors.
      EXPECT_LE(simulate(rounds, requests, 1.0, random).decided, 0.10);
    }
  }
}

TEST(PairedRatio, FindsALargeEffectInFewRounds) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  EXPECT_GE(simulate(3, 6, 2.0, random).decided, 0.95);
  EXPECT_GE(simulate(5, 6, 0.8, random).decided, 0.90);
}

TEST(Equivalence, CountsAndFirstDivergence) {
  Equivalence total;
  add_outputs({{1, 2, 3}, {4, 5}, {}, {9}}, {{1, 2, 3}, {4, 6, 7}, {}, {8}}, total);
  EXPECT_EQ(total.positions, 7);
  EXPECT_EQ(total.equal, 4);
  EXPECT_EQ(total.requests_equal, 2);
  EXPECT_EQ(total.first_divergence, (std::vector<std::int64_t>{-1, 1, -1, 0}));
  // A second round: request 0 now parts at token 2, request 1 later than before.
  add_outputs({{1, 2, 3}, {4, 5, 7}, {}, {9}}, {{1, 2, 4}, {4, 5, 8}, {}, {9}}, total);
  EXPECT_EQ(total.first_divergence, (std::vector<std::int64_t>{2, 1, -1, 0}));
  EXPECT_EQ(total.requests_equal, 1);
  EXPECT_NEAR(total.share(), 9.0 / 14.0, 1e-12);
}

// Equal tokens after a divergence still count as equal positions.
TEST(Equivalence, EqualAgainAfterDivergence) {
  Equivalence total;
  add_outputs({{1, 2, 3}}, {{1, 9, 3}}, total);
  EXPECT_EQ(total.equal, 2);
  EXPECT_EQ(total.first_divergence.front(), 1);
}

TEST(Equivalence, NothingGenerated) {
  Equivalence total;
  add_outputs({{}}, {{}}, total);
  EXPECT_EQ(total.share(), 1.0);
  EXPECT_EQ(total.requests_equal, 1);
}

TEST(Equivalence, MeanAbsoluteDifference) {
  EXPECT_NEAR(mean_absolute_difference({1, 2, 3}, {2, 2, 1}), 1.0, 1e-12);
  EXPECT_TRUE(std::isnan(mean_absolute_difference({}, {})));
  EXPECT_TRUE(std::isnan(mean_absolute_difference({1}, {1, 2})));
}

TEST(MachineLimits, OneRateForEachRepeat) {
  const std::vector<double> rates = measure_read_bandwidth(2, 8 << 20, 3);
  ASSERT_EQ(rates.size(), 3u);
  for (const double rate : rates) {
    EXPECT_GT(rate, 1e6);   // slower than a floppy cable would be a wrong unit
    EXPECT_LT(rate, 1e14);  // and this is faster than any cache
  }
}

}  // namespace
}  // namespace facet
