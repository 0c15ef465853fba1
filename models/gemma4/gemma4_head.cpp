// The end of a step: logits of the rows that are asked for, and the choice of their tokens.
#include <algorithm>

#include "gemma4/gemma4_model.h"
#include "gemma4/step_parts.h"

namespace facet::gemma4 {

// Uncapped logits of `count` rows, by their indices in device memory.
void Gemma4Model::run_head(const std::int32_t* rows, std::int64_t count) {
  const ModelConfig& model = plan_.facts().model;
  const ActivationLayout& layout = plan_.activations();
  backend_.gather_rows(hidden(), rows, count, model.hidden, at<float>(layout.rows));
  ResidualInput input;
  input.hidden = at<float>(layout.rows);
  input.next_norm = final_norm_;
  input.normed = at(layout.normed);
  input.tokens = count;
  input.width = model.hidden;
  input.epsilon = model.epsilon;
  plan_.head().run_normed(backend_, input, at(layout.logits), workspace_);
}

bool Gemma4Model::compute_logits(std::span<const std::int32_t> rows) {
  const ActivationLayout& layout = plan_.activations();
  const auto count = static_cast<std::int64_t>(rows.size());
  if (count > plan_.logit_rows())
    throw_error(ErrorKind::run, "logits of {} rows asked for; at most {} at once", count, plan_.logit_rows());
  bool in_order = has_logits_;
  for (std::size_t i = 0; in_order && i < rows.size(); ++i) in_order = rows[i] == static_cast<std::int32_t>(i);
  if (in_order) return false;
  backend_.upload(at(layout.row_index), rows.data(), rows.size_bytes());
  backend_.run_step([&] {
    enter(StepPart::head);
    run_head(at<std::int32_t>(layout.row_index), count);
  });
  has_logits_ = false;
  uncapped_rows_ = count;
  return true;
}

const float* Gemma4Model::logits(std::span<const std::int32_t> rows) {
  const std::int64_t vocabulary = plan_.facts().model.vocabulary;
  auto* logits = at<float>(plan_.activations().logits);
  compute_logits(rows);
  if (cap() > 0) backend_.soft_cap(logits, uncapped_rows_ * vocabulary, cap());
  uncapped_rows_ = 0;
  return static_cast<const float*>(
      backend_.read_back(logits, rows.size() * static_cast<std::uint64_t>(vocabulary) * sizeof(float)));
}

void Gemma4Model::choose_rows(std::span<const RowSampling> how, bool have_best) {
  const ActivationLayout& layout = plan_.activations();
  const auto rows = static_cast<std::int64_t>(how.size());
  const std::int64_t vocabulary = plan_.facts().model.vocabulary;
  const bool greedy = std::all_of(how.begin(), how.end(), [](const RowSampling& row) { return row.temperature == 0; });
  if (!greedy) {
    backend_.upload(at(layout.sampling), how.data(), how.size_bytes());
    backend_.sample(at<float>(layout.logits), rows, vocabulary, cap(), at<RowSampling>(layout.sampling),
                    at<std::int32_t>(layout.best));
  } else if (!have_best) {
    backend_.argmax(at<float>(layout.logits), rows, vocabulary, cap(), at<std::int32_t>(layout.best));
  }
}

std::vector<std::int32_t> Gemma4Model::choose(std::span<const std::int32_t> rows, std::span<const RowSampling> how) {
  choose_rows(how, !compute_logits(rows));
  const auto* ids = static_cast<const std::int32_t*>(
      backend_.read_back(at(plan_.activations().best), rows.size() * sizeof(std::int32_t)));
  return {ids, ids + rows.size()};
}

bool Gemma4Model::begin_choice(std::span<const RowSampling> how) {
  if (!has_logits_) return false;
  choose_rows(how, true);
  chosen_rows_ = static_cast<std::int64_t>(how.size());
  backend_.begin_read_back(at(plan_.activations().best), how.size() * sizeof(std::int32_t));
  return true;
}

std::vector<std::int32_t> Gemma4Model::end_choice() {
  const auto* ids = static_cast<const std::int32_t*>(backend_.end_read_back());
  return {ids, ids + chosen_rows_};
}

}  // namespace facet::gemma4
