// From one row of logits to one token, for one request.
//
// Order: repetition penalty, temperature, top-k, top-p, min-p, draw. Each filter sees the distribution that the one
// before it left, renormalised.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "facet/sampling/token_draw.h"

namespace facet {

struct SamplingParams {
  double temperature = 0;             // 0: greedy, the filters below then have no effect; [0, 100]
  std::int64_t top_k = 0;             // keeps the k most probable tokens; 0: all
  double top_p = 1;                   // keeps the smallest set of most probable tokens that reaches this mass; (0, 1]
  double min_p = 0;                   // keeps tokens at least this fraction as probable as the best one; [0, 1]
  std::optional<std::uint64_t> seed;  // without: the seed that the engine draws for the request
  double repetition_penalty = 1;      // [0.01, 100]; above 1: tokens of prompt and output become less likely
                                      // (positive logits are divided, others multiplied; Keskar et al. 2019, CTRL)
};

// Throws Error(request) naming every field that is NaN or out of range, with its value and the range.
void validate(const SamplingParams& params);

// Seed of choice `index` when one request asks for several outputs: index 0 is the seed itself, the others differ.
std::uint64_t choice_seed(std::uint64_t seed, std::uint64_t index) noexcept;

// The number in [0, 1) that decides output `index` of a request. It depends on nothing else, so neighbours in the
// batch, preemption and recomputation do not change what a request says. 53 random bits, splitmix64 finaliser
// (Steele, Lea, Flood 2014) applied to the seed and then to the index.
double uniform_draw(std::uint64_t seed, std::uint64_t index) noexcept;

// Natural log of the model's own probability of `id`: softmax of `logits` [vocabulary] as given. Absolute error below
// 2e-6 for finite logits; NaN when a logit is NaN or plus infinity.
double log_probability(std::span<const float> logits, std::int32_t id);

// Greedy choice: the lowest id among the largest of `logits`; -1 where one is NaN or plus infinity, or all are minus
// infinity.
std::int32_t most_probable(std::span<const float> logits);

// One per request. Holds scratch memory of the size of the vocabulary once something other than plain greedy is asked
// for. Not for use by several threads at once.
class Sampler {
 public:
  // Throws what validate() throws. request_seed counts when params has no seed.
  Sampler(const SamplingParams& params, std::uint64_t request_seed);

  struct Result {
    std::int32_t id = -1;
    bool ok = false;
    std::string error;  // why not ok; the request fails, its neighbours go on
  };

  // logits [vocabulary]: minus infinity means impossible; NaN, plus infinity or nothing possible is not ok. Greedy ties
  // go to the lowest id. prompt and generated are the tokens so far; generated.size() is the index of this output.
  Result sample(std::span<const float> logits, std::span<const std::int32_t> prompt,
                std::span<const std::int32_t> generated);

  // How output `index` is chosen. The repetition penalty, which needs the tokens before, is not in it.
  RowSampling row(std::uint64_t index) const noexcept;
  std::uint64_t seed() const noexcept { return seed_; }
  const SamplingParams& params() const noexcept { return params_; }

 private:
  bool apply_penalty(std::span<const float> logits, std::span<const std::int32_t> tokens, std::string& error);

  SamplingParams params_;
  std::uint64_t seed_;
  std::vector<float> penalised_;
  TokenDraw draw_;
};

}  // namespace facet
