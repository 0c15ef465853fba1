#include "facet/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "facet/base/error.h"
#include "logit_scan.h"

namespace facet {

namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ull;  // 2^64 / golden ratio: splitmix64's step
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

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

Sampler::Sampler(const SamplingParams& params, std::uint64_t request_seed)
    : params_(params), seed_(params.seed.value_or(request_seed)) {
  validate(params_);
}

RowSampling Sampler::row(std::uint64_t index) const noexcept {
  return {params_.temperature, params_.top_k, params_.top_p, params_.min_p, uniform_draw(seed_, index)};
}

Sampler::Result Sampler::sample(std::span<const float> logits, std::span<const std::int32_t> prompt,
                                std::span<const std::int32_t> generated) {
  Result result;
  const LogitScan raw = scan_logits(logits);
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
  if (params_.repetition_penalty != 1) {
    penalised_.assign(logits.begin(), logits.end());
    if (!apply_penalty(logits, prompt, result.error) || !apply_penalty(logits, generated, result.error)) return result;
    adjusted = penalised_;
  }
  result.id = draw_.choose(adjusted, row(generated.size()));
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

}  // namespace facet
