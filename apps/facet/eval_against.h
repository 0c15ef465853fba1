// Two models over the same sequences, their logits held against each other row by row.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "facet/engine/engine.h"
#include "facet/measure/logit_difference.h"
#include "gemma4/pipeline.h"

namespace facet::cli {

// One sequence scored; difference and reference_nll only by an EvalComparison.
struct SequenceScore {
  std::vector<double> nll;  // one for each token but the first
  std::vector<double> reference_nll;
  LogitDifferenceSum difference;
};

// A request that scores `tokens` (at least 2): all at once in the configured chunks, or with `decode` one by one.
Request score_request(const std::vector<std::int32_t>& tokens, bool decode);

// An engine that runs one request at a time, and the logits of the tokens of its last step.
class SteppedEngine {
 public:
  // `name` of the configuration, for errors. The pipeline is loaded and must outlive this.
  SteppedEngine(gemma4::Pipeline& pipeline, std::string name);

  // Begins at position 0. Throws Error(request) as Engine::submit does.
  void start(Request request);
  // Steps until `position` is among the tokens of the last step. Throws Error(run) when the request ends before.
  void advance_to(std::int64_t position);
  // First position after the last step.
  std::int64_t end() const { return end_; }
  std::int64_t max_rows() const { return model_.max_logit_rows(); }
  // [count, vocabulary] of positions of the last step; count is at most max_rows(). Valid until the next call.
  const float* logits(std::int64_t position, std::int64_t count);
  // Steps to the end of the request and returns its scores.
  std::vector<double> finish();

 private:
  bool step();

  Model& model_;
  std::unique_ptr<Engine> engine_;
  std::string name_;
  std::int64_t begin_ = 0;  // positions of the last step
  std::int64_t end_ = 0;
};

// Both models advance together, in chunks of their own configurations. Logits exist for one block of rows at a time;
// each model computes its head twice, once for its own score and once for the comparison.
class EvalComparison {
 public:
  // Throws Error(usage) with both sizes when the vocabularies differ.
  EvalComparison(gemma4::Pipeline& variant, gemma4::Pipeline& reference);
  // Throws Error(request) for tokens that one of the models cannot take, Error(run) for logits that are not finite.
  SequenceScore score(const std::vector<std::int32_t>& tokens, bool decode);

 private:
  std::int64_t vocabulary_;
  SteppedEngine variant_, reference_;
};

}  // namespace facet::cli
