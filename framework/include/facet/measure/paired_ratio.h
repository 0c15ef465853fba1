// Is one variant faster than another? Ratios of times measured side by side, with an interval and a verdict.
#pragma once

#include <cstdint>
#include <vector>

namespace facet {

// Time of the second variant over time of the first. Below 1: the second is faster.
struct PairedRatio {
  double ratio = 0;           // median over all pairs
  double low = 0;             // 95 % interval of `ratio`; only with has_interval
  double high = 0;            //
  bool has_interval = false;  // two rounds at least: one round says nothing about how much rounds differ
  std::int64_t rounds = 0;    // rounds that held a pair
  std::int64_t pairs = 0;
};

// `rounds[r]` holds the ratios of round r: one for the round's time, or one for each request. Ratios are above 0 and
// finite; empty rounds are skipped; no ratio at all gives pairs = 0.
//
// The interval is the wider, on each side, of two:
// - percentile bootstrap (Efron 1979) of the median: rounds are drawn with replacement, each with all its pairs, since
//   requests of one round share its disturbances and are not independent; 2,000 draws from `seed`;
// - Student's t interval of the logarithms of the rounds' medians. A bootstrap never leaves the range of its samples,
//   so with three rounds it would call equal variants different every fourth time.
PairedRatio paired_ratio(const std::vector<std::vector<double>>& rounds, std::uint64_t seed = 1);

enum class Verdict {
  faster,               // the whole interval lies below 1
  slower,               // the whole interval lies above 1
  no_difference_shown,  // the interval holds 1: there may be a difference that these rounds cannot show
  no_verdict,           // no interval
};

Verdict verdict(const PairedRatio& ratio) noexcept;
// "faster", "slower", "no difference shown", "no verdict"
const char* to_string(Verdict verdict) noexcept;

}  // namespace facet
