#include "eval_against.h"

#include <algorithm>
#include <cmath>

#include "facet/base/error.h"

namespace facet::cli {

Request score_request(const std::vector<std::int32_t>& tokens, bool decode) {
  Request request;
  request.score = true;
  if (decode) {
    request.prompt = {tokens.front()};
    request.forced.assign(tokens.begin() + 1, tokens.end());
    request.max_tokens = static_cast<std::int64_t>(request.forced.size());
  } else {
    request.prompt = tokens;
    request.max_tokens = 0;
  }
  return request;
}

SteppedEngine::SteppedEngine(gemma4::Pipeline& pipeline, std::string name)
    : model_(pipeline.model()), engine_(pipeline.make_engine()), name_(std::move(name)) {}

void SteppedEngine::start(Request request) {
  begin_ = end_ = 0;
  try {
    engine_->submit(std::move(request));
  } catch (Error& error) {
    error.add_context("by " + name_);
    throw;
  }
}

// One request is live and scoring turns reuse of cached rows off, so the tokens that a step computed follow those of
// the step before.
bool SteppedEngine::step() {
  const auto computed = [&] { return engine_->metrics().prefill_tokens + engine_->metrics().decode_tokens; };
  const std::int64_t before = computed();
  if (!engine_->step()) return false;
  begin_ = end_;
  end_ += computed() - before;
  return true;
}

void SteppedEngine::advance_to(std::int64_t position) {
  while (end_ <= position && step()) {
  }
  if (end_ > position) return;
  finish();  // says why, when the request failed
  throw_error(ErrorKind::run, "{}: ended after {} tokens, before position {}", name_, end_, position);
}

const float* SteppedEngine::logits(std::int64_t position, std::int64_t count) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<std::int32_t>(position - begin_ + static_cast<std::int64_t>(i));
  return model_.logits(rows);
}

std::vector<double> SteppedEngine::finish() {
  while (step()) {
  }
  const std::vector<RequestResult> results = engine_->take_finished();
  if (results.size() != 1) throw_error(ErrorKind::run, "{}: {} results where one request ran", name_, results.size());
  if (results.front().finish_reason == FinishReason::error)
    throw_error(ErrorKind::run, "{}: {}", name_, results.front().error);
  return results.front().nll;
}

EvalComparison::EvalComparison(gemma4::Pipeline& variant, gemma4::Pipeline& reference)
    : vocabulary_(variant.model().vocabulary()),
      variant_(variant, variant.config().file.string()),
      reference_(reference, reference.config().file.string()) {
  if (vocabulary_ != reference.model().vocabulary()) {
    throw_error(ErrorKind::usage,
                "--against: {} has a vocabulary of {} tokens, {} of {}; only models of the same vocabulary can be "
                "compared",
                reference.config().file.string(), reference.model().vocabulary(), variant.config().file.string(),
                vocabulary_);
  }
}

SequenceScore EvalComparison::score(const std::vector<std::int32_t>& tokens, bool decode) {
  variant_.start(score_request(tokens, decode));
  reference_.start(score_request(tokens, decode));
  SequenceScore score;
  // The last token has no successor to predict.
  const auto predictions = static_cast<std::int64_t>(tokens.size()) - 1;
  const auto width = static_cast<std::size_t>(vocabulary_);
  for (std::int64_t position = 0; position < predictions;) {
    variant_.advance_to(position);
    reference_.advance_to(position);
    const std::int64_t count = std::min({predictions, variant_.end(), reference_.end()}) - position;
    const std::int64_t block = std::min({count, variant_.max_rows(), reference_.max_rows()});
    const float* variant = variant_.logits(position, block);
    const float* reference = reference_.logits(position, block);
    for (std::int64_t row = 0; row < block; ++row) {
      const std::int64_t at = row * vocabulary_;
      const LogitDifference difference = compare_logits({reference + at, width}, {variant + at, width});
      if (std::isnan(difference.kl))
        throw_error(ErrorKind::run, "the logits at position {} hold NaN or infinity", position + row);
      score.difference.add(difference);
    }
    position += block;
  }
  score.nll = variant_.finish();
  score.reference_nll = reference_.finish();
  return score;
}

}  // namespace facet::cli
