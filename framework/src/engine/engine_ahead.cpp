// Steps that run ahead: while the device works on one, the next is planned and queued, and only then are the tokens of
// the first read. Its sequences carry a token that is not known yet; the device knows it.
#include <algorithm>

#include "engine_steps.h"
#include "facet/base/log.h"

namespace facet {

// Every row of the batch chooses a token of its own, and the model has chosen them.
bool Engine::take_off(const std::vector<Sequence*>& scheduled, const Batch& batch) {
  if (!limits_.run_ahead || batch.wanted.size() != batch.ids.size()) return false;
  if (!std::all_of(batch.wanted.begin(), batch.wanted.end(), [](const WantedRow& row) { return row.chosen; }))
    return false;
  if (!model_.begin_choice(sampling_of(scheduled, batch.wanted))) return false;
  flight_ = std::make_unique<Flight>();
  for (Sequence* sequence : scheduled) {
    if (!sequence->done) sequence->computed += sequence->scheduled;
    flight_->sequences.push_back(sequence->done ? nullptr : sequence);
  }
  return true;
}

// Whether the next step can be planned without knowing what the one in flight chose: each of its sequences goes on,
// unless its token happens to be a stop id; then its row of the next step is dropped.
bool Engine::can_run_ahead() const {
  return std::all_of(flight_->sequences.begin(), flight_->sequences.end(), [](const Sequence* sequence) {
    return sequence == nullptr || sequence->generated() + 1 < sequence->request.max_tokens;
  });
}

// Its token is not asked for any more.
void Engine::forget(const Sequence& sequence) {
  for (Sequence*& flying : flight_->sequences) {
    if (flying == &sequence) flying = nullptr;
  }
}

// The unknown tokens take their places: the plan of the next step counts them.
void Engine::assume_tokens() {
  for (Sequence* sequence : flight_->sequences) {
    if (sequence == nullptr) continue;
    sequence->tokens.push_back(kUnknownToken);
    sequence->ahead = true;
  }
}

// What the model takes for the token that a sequence ends in.
std::int32_t Engine::id_for_model(const Sequence& sequence, std::size_t index) const {
  if (!sequence.ahead || index + 1 < sequence.tokens.size()) return sequence.tokens[index];
  const auto found = std::find(flight_->sequences.begin(), flight_->sequences.end(), &sequence);
  return -1 - static_cast<std::int32_t>(found - flight_->sequences.begin());
}

// Waits for the tokens of the step in flight. What goes wrong ends its requests.
void Engine::land() {
  const std::unique_ptr<Flight> flight = std::move(flight_);
  std::vector<Sequence*> open;
  for (Sequence* sequence : flight->sequences) {
    if (sequence != nullptr) open.push_back(sequence);
  }
  try {
    const std::vector<std::int32_t> ids = model_.end_choice();
    for (std::size_t row = 0; row < flight->sequences.size(); ++row) {
      if (flight->sequences[row] != nullptr) land_token(*flight->sequences[row], ids[row]);
    }
  } catch (const Error& error) {
    fail_batch(open, error.full_text());
  } catch (const std::exception& error) {
    fail_batch(open, error.what());
  }
}

void Engine::land_all() {
  land();
  remove_finished();
}

void Engine::land_token(Sequence& sequence, std::int32_t id) {
  const bool planned_on = sequence.ahead;
  if (planned_on) {
    sequence.tokens.pop_back();
    sequence.ahead = false;
  }
  if (id < 0) {
    finish(sequence, FinishReason::error,
           fmt::format("the logits at position {} hold NaN or infinity", sequence.tokens.size() - 1));
    return;
  }
  accept_token(sequence, id);
  if (!sequence.done && !planned_on && sequence.request.max_tokens == sequence.generated())
    finish(sequence, FinishReason::length);
}

}  // namespace facet
