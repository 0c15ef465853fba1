#include "logit_scan.h"

#include <algorithm>
#include <cmath>

#include "facet/sampling/sampler.h"

namespace facet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Loops over the vocabulary run in lanes with one partial result each, which the compiler turns into vectors.
constexpr std::size_t kLanes = 16;

}  // namespace

LogitScan scan_logits(std::span<const float> logits) {
  float best[kLanes];
  std::uint32_t bad[kLanes] = {};
  std::fill_n(best, kLanes, -kInfinity);
  const auto look = [&](std::size_t lane, float logit) {
    best[lane] = logit > best[lane] ? logit : best[lane];
    bad[lane] |= logit < kInfinity ? 0u : 1u;
  };
  std::size_t id = 0;
  for (; id + kLanes <= logits.size(); id += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) look(lane, logits[id + lane]);
  for (std::size_t lane = 0; id < logits.size(); ++id, ++lane) look(lane, logits[id]);

  LogitScan found;
  found.max = *std::max_element(best, best + kLanes);
  if (std::any_of(bad, bad + kLanes, [](std::uint32_t lane) { return lane != 0; })) {
    for (id = 0; id < logits.size(); ++id) {
      if (logits[id] < kInfinity) continue;
      if (found.bad++ == 0) found.first_bad = static_cast<std::int64_t>(id);
    }
  } else if (found.max > -kInfinity) {
    found.argmax = static_cast<std::int32_t>(std::find(logits.begin(), logits.end(), found.max) - logits.begin());
  }
  return found;
}

double log_probability(std::span<const float> logits, std::int32_t id) {
  const LogitScan found = scan_logits(logits);
  if (found.bad > 0) return std::numeric_limits<double>::quiet_NaN();
  const float max = found.max;
  float sums[kLanes] = {};
  double sum = 0;
  std::size_t begin = 0;
  // Short runs in float, their sum in double: no error grows with the vocabulary.
  constexpr std::size_t kRun = 64 * kLanes;
  for (; begin + kRun <= logits.size(); begin += kRun) {
    std::fill_n(sums, kLanes, 0.0f);
    for (std::size_t i = 0; i < kRun; i += kLanes)
      for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += exp_negative(logits[begin + i + lane] - max);
    for (const float lane : sums) sum += lane;
  }
  for (; begin < logits.size(); ++begin) sum += exp_negative(logits[begin] - max);
  return static_cast<double>(logits[static_cast<std::size_t>(id)]) - static_cast<double>(max) - std::log(sum);
}

std::int32_t most_probable(std::span<const float> logits) {
  return scan_logits(logits).argmax;
}

}  // namespace facet
