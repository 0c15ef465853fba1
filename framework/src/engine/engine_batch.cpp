// The second half of a step: the accepted plan becomes one ragged batch, and its logits become tokens.
#include <algorithm>
#include <cmath>

#include "engine_steps.h"
#include "facet/base/log.h"
#include "facet/engine/engine.h"

namespace facet {

Engine::Batch Engine::make_batch(const std::vector<Sequence*>& scheduled) const {
  Batch batch;
  batch.token_begin.push_back(0);
  for (std::size_t index = 0; index < scheduled.size(); ++index) {
    const Sequence& sequence = *scheduled[index];
    batch.sequence_ids.push_back(sequence.id());
    batch.first_position.push_back(static_cast<std::int32_t>(sequence.computed));
    for (std::int64_t i = 0; i < sequence.scheduled; ++i) {
      batch.ids.push_back(id_for_model(sequence, static_cast<std::size_t>(sequence.computed + i)));
      batch.positions.push_back(static_cast<std::int32_t>(sequence.computed + i));
      batch.sequence.push_back(static_cast<std::int32_t>(index));
    }
    add_wanted(sequence, index, batch);
    batch.token_begin.push_back(static_cast<std::int32_t>(batch.ids.size()));
    batch.max_new_tokens = std::max(batch.max_new_tokens, sequence.scheduled);
    batch.max_rows = std::max(batch.max_rows, sequence.computed + sequence.scheduled);
  }
  return batch;
}

void Engine::add_wanted(const Sequence& sequence, std::size_t index, Batch& batch) {
  const bool complete = sequence.scheduled == sequence.pending();
  const SamplingParams& sampling = sequence.sampler.params();
  const bool forced = static_cast<std::size_t>(sequence.generated()) < sequence.request.forced.size();
  for (std::int64_t offset = 0; offset < sequence.scheduled; ++offset) {
    const bool last = complete && offset + 1 == sequence.scheduled;
    const bool score = sequence.request.score && !last && sequence.computed + offset >= sequence.scored;
    if (!score && !(last && sequence.generated() < sequence.request.max_tokens)) continue;
    // A penalty needs the tokens before, which the host has.
    const bool chosen = last && !forced && sampling.repetition_penalty == 1;
    batch.wanted.push_back({index, offset, chosen});
    batch.wanted_rows.push_back(batch.token_begin.back() + static_cast<std::int32_t>(offset));
  }
}

void Engine::run_batch(const std::vector<Sequence*>& scheduled) {
  const Batch batch = make_batch(scheduled);
  StepInput input;
  input.ids = batch.ids.data();
  input.positions = batch.positions.data();
  input.sequence = batch.sequence.data();
  input.batch.size = sizeof input.batch;
  input.batch.sequence_count = static_cast<std::int32_t>(scheduled.size());
  input.batch.token_count = static_cast<std::int64_t>(batch.ids.size());
  input.batch.token_begin = batch.token_begin.data();
  input.batch.first_position = batch.first_position.data();
  input.batch.max_new_tokens = batch.max_new_tokens;
  input.batch.max_rows = batch.max_rows;
  input.all_logits = batch.wanted.size() == batch.ids.size();
  try {
    model_.kv().begin_step(batch.sequence_ids);
    model_.forward(input);
    // From here the tokens that went in are known. A sequence may have ended with one of them.
    if (flight_ != nullptr) land();
    for (const Sequence* sequence : scheduled) {
      if (sequence->done) continue;
      model_.kv().commit(sequence->id(),
                         {sequence->tokens.data() + sequence->computed, static_cast<std::size_t>(sequence->scheduled)});
    }
    // Here every row of the step is held; sequences that finish below give theirs back.
    const KvManager::Bytes bytes = model_.kv().bytes();
    metrics_.peak_kv_reserved = std::max(metrics_.peak_kv_reserved, bytes.reserved);
    metrics_.peak_kv_used = std::max(metrics_.peak_kv_used, bytes.used);
    if (!take_off(scheduled, batch)) read_logits(scheduled, batch);
  } catch (const Error& error) {
    if (flight_ != nullptr) land();
    fail_batch(scheduled, error.full_text());
  } catch (const std::exception& error) {
    if (flight_ != nullptr) land();
    fail_batch(scheduled, error.what());
  }
}

// What goes wrong inside a batch ends the requests of that batch, not the engine.
void Engine::fail_batch(const std::vector<Sequence*>& scheduled, const std::string& text) {
  log(LogLevel::error, "step {}: {}", step_, text);
  for (Sequence* sequence : scheduled) {
    if (!sequence->done) finish(*sequence, FinishReason::error, text);
  }
}

// Wanted rows, handled in blocks the model can hold. Where only the tokens count, no logits leave the device.
void Engine::read_logits(const std::vector<Sequence*>& scheduled, const Batch& batch) {
  const auto block = static_cast<std::size_t>(model_.max_logit_rows());
  for (std::size_t begin = 0; begin < batch.wanted.size(); begin += block) {
    const std::size_t count = std::min(block, batch.wanted.size() - begin);
    const std::span<const std::int32_t> rows(batch.wanted_rows.data() + begin, count);
    const std::span<const WantedRow> wanted(batch.wanted.data() + begin, count);
    if (std::all_of(wanted.begin(), wanted.end(), [](const WantedRow& row) { return row.chosen; }) &&
        take_chosen(scheduled, wanted, rows)) {
      continue;
    }
    const float* logits = model_.logits(rows);
    for (std::size_t i = 0; i < count; ++i) {
      take_row(*scheduled[wanted[i].sequence], wanted[i].offset,
               logits + static_cast<std::int64_t>(i) * model_.vocabulary());
    }
  }
  for (Sequence* sequence : scheduled) {
    if (sequence->done) continue;
    sequence->computed += sequence->scheduled;
    if (sequence->request.max_tokens == sequence->generated() && sequence->pending() <= 1)
      finish(*sequence, FinishReason::length);
  }
}

std::vector<RowSampling> Engine::sampling_of(const std::vector<Sequence*>& scheduled,
                                             std::span<const WantedRow> wanted) {
  std::vector<RowSampling> how;
  how.reserve(wanted.size());
  for (const WantedRow& row : wanted) {
    const Sequence& sequence = *scheduled[row.sequence];
    how.push_back(sequence.sampler.row(static_cast<std::uint64_t>(sequence.generated())));
  }
  return how;
}

// False, and nothing taken, when a row has no possible token: the sampler then says why.
bool Engine::take_chosen(const std::vector<Sequence*>& scheduled, std::span<const WantedRow> wanted,
                         std::span<const std::int32_t> rows) {
  const std::vector<std::int32_t> ids = model_.choose(rows, sampling_of(scheduled, wanted));
  if (std::any_of(ids.begin(), ids.end(), [](std::int32_t id) { return id < 0; })) return false;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    Sequence& sequence = *scheduled[wanted[i].sequence];
    if (!sequence.done) accept_token(sequence, ids[i]);
  }
  return true;
}

// One row of logits: either the next token is known and scored, or it is chosen.
void Engine::take_row(Sequence& sequence, std::int64_t offset, const float* logits) {
  if (sequence.done) return;
  const std::span<const float> row(logits, static_cast<std::size_t>(model_.vocabulary()));
  const std::int64_t position = sequence.computed + offset;
  const auto next = static_cast<std::size_t>(position + 1);
  if (next < sequence.tokens.size()) {
    add_score(sequence, position, row, sequence.tokens[next]);
    return;
  }
  const auto output = static_cast<std::size_t>(sequence.generated());
  if (output < sequence.request.forced.size()) {
    const std::int32_t token = sequence.request.forced[output];
    if (sequence.request.score) add_score(sequence, position, row, token);
    if (!sequence.done) accept_token(sequence, token);
    return;
  }
  const Sampler::Result sampled = sequence.sampler.sample({logits, static_cast<std::size_t>(model_.vocabulary())},
                                                          sequence.result.prompt, sequence.result.ids);
  if (!sampled.ok) {
    finish(sequence, FinishReason::error, sampled.error);
    return;
  }
  accept_token(sequence, sampled.id);
}

// A NaN must not hide in a mean: it fails the request.
void Engine::add_score(Sequence& sequence, std::int64_t position, std::span<const float> logits, std::int32_t token) {
  const double nll = -log_probability(logits, token);
  if (std::isnan(nll)) {
    finish(sequence, FinishReason::error, fmt::format("the logits at position {} hold NaN or infinity", position));
    return;
  }
  sequence.result.nll.push_back(nll);
  sequence.scored = position + 1;
}

void Engine::accept_token(Sequence& sequence, std::int32_t token) {
  sequence.tokens.push_back(token);
  sequence.result.ids.push_back(token);
  sequence.result.token_us.push_back(now_us());
  if (on_token) on_token(sequence.id(), token);
  const std::vector<std::int32_t>& stops = sequence.request.stop_ids;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) finish(sequence, FinishReason::stop);
}

}  // namespace facet
