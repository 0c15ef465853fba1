#include "facet/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "facet/base/error.h"
#include "facet/base/fast_exp.h"

namespace facet {

namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ull;  // 2^64 / golden ratio: splitmix64's step
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// A heap of up to this many candidates is faster than nth_element over a whole vocabulary.
constexpr std::int64_t kHeapLimit = 1024;

std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Loops over the vocabulary run in lanes with one partial result each, which the compiler turns into vectors.
constexpr std::size_t kLanes = 16;

// Terms of a sum of exponentials: what is below e^-87 of the largest is nothing.
inline float exp_negative(float x) {
  return x > -87.0f ? fast_exp(x) : 0.0f;
}

struct Scan {
  float max = -kInfinity;
  std::int32_t argmax = -1;  // lowest id of the maximum
  std::int64_t bad = 0;      // NaN or plus infinity
  std::int64_t first_bad = -1;
};

Scan scan(std::span<const float> logits) {
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

  Scan found;
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

// More probable first; equal logits by id, so that a cut through a tie is the same on every machine.
constexpr auto kMoreProbable = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
};

}  // namespace

void validate(const SamplingParams& params) {
  Problems problems;
  // Written so that NaN fails too.
  if (!(params.temperature >= 0 && params.temperature <= 100))
    problems.add("temperature = {} is not in [0, 100]", params.temperature);
  if (params.top_k < 0) problems.add("top_k = {} is negative; 0 keeps all tokens", params.top_k);
  if (!(params.top_p > 0 && params.top_p <= 1)) problems.add("top_p = {} is not in (0, 1]", params.top_p);
  if (!(params.min_p >= 0 && params.min_p <= 1)) problems.add("min_p = {} is not in [0, 1]", params.min_p);
  if (!(params.repetition_penalty >= 0.01 && params.repetition_penalty <= 100))
    problems.add("repetition_penalty = {} is not in [0.01, 100]", params.repetition_penalty);
  problems.throw_if_any(ErrorKind::request, "sampling parameters are out of range");
}

std::uint64_t choice_seed(std::uint64_t seed, std::uint64_t index) noexcept {
  return index == 0 ? seed : mix(mix(seed + kGolden) + index * kGolden);
}

double uniform_draw(std::uint64_t seed, std::uint64_t index) noexcept {
  const std::uint64_t bits = mix(mix(seed + kGolden) ^ mix(index * kGolden + 1));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

double log_probability(std::span<const float> logits, std::int32_t id) {
  const Scan found = scan(logits);
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
  return scan(logits).argmax;
}

Sampler::Sampler(const SamplingParams& params, std::uint64_t request_seed)
    : params_(params), seed_(params.seed.value_or(request_seed)) {
  validate(params_);
}

Sampler::Result Sampler::sample(std::span<const float> logits, std::span<const std::int32_t> prompt,
                                std::span<const std::int32_t> generated) {
  Result result;
  const Scan raw = scan(logits);
  if (raw.bad > 0) {
    result.error = fmt::format("{} of {} logits of output {} are NaN or infinite, the first at token {}", raw.bad,
                               logits.size(), generated.size(), raw.first_bad);
    return result;
  }
  if (raw.argmax < 0) {
    result.error = fmt::format("none of the {} tokens is possible at output {}: every logit is minus infinity",
                               logits.size(), generated.size());
    return result;
  }
  std::span<const float> adjusted = logits;
  Scan best = raw;
  if (params_.repetition_penalty != 1) {
    penalised_.assign(logits.begin(), logits.end());
    if (!apply_penalty(logits, prompt, result.error) || !apply_penalty(logits, generated, result.error)) return result;
    adjusted = penalised_;
    best = scan(adjusted);
  }
  result.id = params_.temperature == 0 ? best.argmax : draw(adjusted, best.max, uniform_draw(seed_, generated.size()));
  result.ok = true;
  return result;
}

// Reads the untouched logits, so a token that occurs twice is penalised once. Results stay finite: the scan after it
// would take an overflow for a fault of the model.
bool Sampler::apply_penalty(std::span<const float> logits, std::span<const std::int32_t> tokens, std::string& error) {
  constexpr double kLimit = std::numeric_limits<float>::max();
  for (const std::int32_t token : tokens) {
    const auto id = static_cast<std::size_t>(token);
    if (token < 0 || id >= logits.size()) {
      error = fmt::format("repetition penalty: token {} is outside the vocabulary of {}", token, logits.size());
      return false;
    }
    if (logits[id] == -kInfinity) continue;
    const double logit = logits[id];
    const double changed = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    penalised_[id] = static_cast<float>(std::clamp(changed, -kLimit, kLimit));
  }
  return true;
}

// Relative to the most probable token, whose weight is 1. Divides, because 1 / temperature may overflow.
float Sampler::weight(float logit, float top) const {
  return exp_negative(
      static_cast<float>((static_cast<double>(logit) - static_cast<double>(top)) / params_.temperature));
}

std::int32_t Sampler::draw(std::span<const float> logits, float top, double uniform) {
  const auto vocabulary = static_cast<std::int64_t>(logits.size());
  if ((params_.top_k > 0 && params_.top_k < vocabulary) || params_.top_p < 1)
    return draw_filtered(logits, top, uniform);
  weights_.resize(logits.size());
  for (std::size_t id = 0; id < logits.size(); ++id) weights_[id] = weight(logits[id], top);
  double total = 0;
  for (float& value : weights_) {
    if (static_cast<double>(value) < params_.min_p) value = 0;
    total += value;
  }
  double left = uniform * total;
  std::size_t chosen = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (weights_[id] == 0) continue;
    chosen = id;  // rounding may leave a remainder at the end: the last possible token takes it
    left -= weights_[id];
    if (left < 0) break;
  }
  return static_cast<std::int32_t>(chosen);
}

std::int32_t Sampler::draw_filtered(std::span<const float> logits, float top, double uniform) {
  keep_top_k(logits);
  if (params_.top_p < 1) keep_top_p(top);
  weights_.clear();
  double total = 0;
  for (const Candidate& candidate : candidates_) {
    const float value = weight(candidate.logit, top);
    weights_.push_back(static_cast<double>(value) >= params_.min_p ? value : 0);
    total += weights_.back();
  }
  double left = uniform * total;
  std::int32_t chosen = candidates_.front().id;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (weights_[i] == 0) continue;
    chosen = candidates_[i].id;
    left -= weights_[i];
    if (left < 0) break;
  }
  return chosen;
}

// Leaves the k most probable possible tokens in candidates_, in an order that depends on logits and k only.
void Sampler::keep_top_k(std::span<const float> logits) {
  candidates_.clear();
  const auto vocabulary = static_cast<std::int64_t>(logits.size());
  const std::int64_t kept = params_.top_k > 0 ? std::min(params_.top_k, vocabulary) : vocabulary;
  const bool heap = kept <= kHeapLimit && kept < vocabulary;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const Candidate candidate{static_cast<std::int32_t>(id), logits[id]};
    if (candidate.logit == -kInfinity) continue;
    const bool full = static_cast<std::int64_t>(candidates_.size()) >= kept;
    if (!heap || !full) {
      candidates_.push_back(candidate);
      if (heap) std::push_heap(candidates_.begin(), candidates_.end(), kMoreProbable);
    } else if (candidate.logit > candidates_.front().logit) {
      // The front is the least probable of those kept; an equal logit with a higher id never replaces it.
      std::pop_heap(candidates_.begin(), candidates_.end(), kMoreProbable);
      candidates_.back() = candidate;
      std::push_heap(candidates_.begin(), candidates_.end(), kMoreProbable);
    }
  }
  if (!heap && static_cast<std::int64_t>(candidates_.size()) > kept) {
    std::nth_element(candidates_.begin(), candidates_.begin() + kept, candidates_.end(), kMoreProbable);
    candidates_.resize(static_cast<std::size_t>(kept));
  }
}

// Sorts only the candidates that the mass needs, usually a few dozen of a large vocabulary: a histogram of the mass by
// distance from the best token says where to cut.
void Sampler::keep_top_p(float top) {
  constexpr std::size_t kBins = 512;
  constexpr double kBinsPerUnit = 8;  // 512 bins reach e^-64 of the best
  const auto bin_of = [&](float logit) {
    const double distance = (static_cast<double>(top) - static_cast<double>(logit)) / params_.temperature;
    return static_cast<std::size_t>(std::min(distance * kBinsPerUnit, static_cast<double>(kBins - 1)));
  };
  double mass[kBins] = {};
  double total = 0;
  for (const Candidate& candidate : candidates_) {
    const double value = weight(candidate.logit, top);
    mass[bin_of(candidate.logit)] += value;
    total += value;
  }
  const double wanted = params_.top_p * total;
  std::size_t last = 0;
  for (double sum = mass[0]; sum < wanted && last + 1 < kBins; sum += mass[last]) ++last;
  std::erase_if(candidates_, [&](const Candidate& candidate) { return bin_of(candidate.logit) > last; });
  std::sort(candidates_.begin(), candidates_.end(), kMoreProbable);
  double sum = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    sum += weight(candidates_[i].logit, top);
    if (sum >= wanted) return candidates_.resize(i + 1);
  }
}

}  // namespace facet
