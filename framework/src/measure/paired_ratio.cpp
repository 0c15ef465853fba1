#include "facet/measure/paired_ratio.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>

#include "facet/measure/percentiles.h"

namespace facet {
namespace {

// Enough that the 2.5 % point rests on 50 draws.
constexpr int kDraws = 2000;
constexpr double kTail = 0.025;

// 97.5 % point of Student's t distribution; beyond the table the normal value with its first correction, 1.96 +
// (1.96^3 + 1.96) / (4 n), is within 0.002.
double student_t(std::size_t degrees) {
  static constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                      2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
  if (degrees <= std::size(kTable)) return kTable[degrees - 1];
  return 1.959964 + 2.372271 / static_cast<double>(degrees);
}

void widen_by_bootstrap(const std::vector<const std::vector<double>*>& rounds, std::uint64_t seed,
                        PairedRatio& result) {
  // Not std::uniform_int_distribution: its values differ between standard libraries.
  std::mt19937_64 random(seed);
  std::vector<double> medians, pooled;
  medians.reserve(kDraws);
  for (int draw = 0; draw < kDraws; ++draw) {
    pooled.clear();
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      const std::vector<double>& round = *rounds[random() % rounds.size()];
      pooled.insert(pooled.end(), round.begin(), round.end());
    }
    medians.push_back(median(pooled));
  }
  std::sort(medians.begin(), medians.end());
  result.low = std::min(result.low, sorted_quantile(medians, kTail));
  result.high = std::max(result.high, sorted_quantile(medians, 1 - kTail));
}

void widen_by_student(const std::vector<const std::vector<double>*>& rounds, PairedRatio& result) {
  std::vector<double> logs;
  logs.reserve(rounds.size());
  for (const std::vector<double>* round : rounds) logs.push_back(std::log(median(*round)));
  double mean = 0, squares = 0;
  const auto count = static_cast<double>(logs.size());
  for (const double value : logs) mean += value / count;
  for (const double value : logs) squares += (value - mean) * (value - mean);
  const double half = student_t(logs.size() - 1) * std::sqrt(squares / (count - 1) / count);
  result.low = std::min(result.low, std::exp(mean - half));
  result.high = std::max(result.high, std::exp(mean + half));
}

}  // namespace

PairedRatio paired_ratio(const std::vector<std::vector<double>>& rounds, std::uint64_t seed) {
  std::vector<const std::vector<double>*> filled;
  std::vector<double> pooled;
  for (const std::vector<double>& round : rounds) {
    if (round.empty()) continue;
    filled.push_back(&round);
    pooled.insert(pooled.end(), round.begin(), round.end());
  }
  PairedRatio result;
  result.rounds = static_cast<std::int64_t>(filled.size());
  result.pairs = static_cast<std::int64_t>(pooled.size());
  result.ratio = median(std::move(pooled));
  result.low = result.high = result.ratio;
  if (filled.size() < 2) return result;
  result.has_interval = true;
  widen_by_bootstrap(filled, seed, result);
  widen_by_student(filled, result);
  return result;
}

Verdict verdict(const PairedRatio& ratio) noexcept {
  if (!ratio.has_interval) return Verdict::no_verdict;
  if (ratio.high < 1) return Verdict::faster;
  if (ratio.low > 1) return Verdict::slower;
  return Verdict::no_difference_shown;
}

const char* to_string(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::faster:
      return "faster";
    case Verdict::slower:
      return "slower";
    case Verdict::no_difference_shown:
      return "no difference shown";
    case Verdict::no_verdict:
      return "no verdict";
  }
  return "unknown";
}

}  // namespace facet
