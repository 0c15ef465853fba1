#include "facet/engine/engine.h"

#include <algorithm>
#include <mutex>
#include <random>
#include <thread>

#include "engine_steps.h"
#include "facet/base/log.h"
#include "progress_watch.h"
#include "step_host.h"

namespace facet {
namespace {

template <typename List>
void insert_by_arrival(List& list, typename List::value_type sequence) {
  const auto later = [](const auto& a, const auto& b) {
    return std::make_pair(a->request.arrival_us, a->id()) < std::make_pair(b->request.arrival_us, b->id());
  };
  list.insert(std::upper_bound(list.begin(), list.end(), sequence, later), std::move(sequence));
}

// A scheduler cannot schedule what the cache refuses, so the cache is named too.
std::string refusal_text(const std::string& refusal, std::size_t live) {
  if (refusal.empty()) return "";
  return fmt::format("; the last answers were: no_memory from {}{}", refusal,
                     live == 1 ? ", which holds no other live sequence and planned room for this one" : "");
}

}  // namespace

struct Engine::CancelList {
  std::mutex mutex;
  std::vector<std::uint64_t> ids;
};

Engine::Engine(Model& model, SchedulerInstance& scheduler, const EngineLimits& limits)
    : model_(model),
      scheduler_(scheduler),
      limits_(limits),
      cancelled_(std::make_unique<CancelList>()),
      progress_(std::make_unique<ProgressWatch>()) {
  if (limits.max_step_tokens > model.max_step_tokens()) {
    throw_error(ErrorKind::config, "engine.max_step_tokens {} is more than the {} the model was planned for",
                limits.max_step_tokens, model.max_step_tokens());
  }
  if (limits.max_sequences > model.kv().max_sequences()) {
    throw_error(ErrorKind::config, "engine.max_sequences {} is more than the {} the caches were planned for",
                limits.max_sequences, model.kv().max_sequences());
  }
  limits_.max_chunk = std::min({limits.max_chunk, limits.max_step_tokens, model.kv().max_chunk()});
  restart_clock();
  now_us = [this] {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start_).count();
  };
}

Engine::~Engine() {
  // Cache and scheduler may serve another engine, whose ids begin at 1 again.
  for (const auto& sequence : live_) {
    if (sequence->state == abi::SequenceState::running) model_.kv().close(sequence->id());
    scheduler_.plugin->finished(sequence->id());
  }
}

void Engine::restart_clock() {
  start_ = std::chrono::steady_clock::now();
}

bool Engine::idle() const {
  return live_.empty() && future_.empty();
}

std::uint64_t Engine::submit(Request request) {
  Problems problems;
  if (request.prompt.empty()) problems.add("prompt: is empty; give at least one token");
  if (request.max_tokens < 0) problems.add("max_tokens: {} is negative", request.max_tokens);
  const auto check_ids = [&](const char* field, const std::vector<std::int32_t>& ids) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0 && ids[i] < model_.vocabulary()) continue;
      problems.add("{}[{}]: id {} is outside the vocabulary 0..{}", field, i, ids[i], model_.vocabulary() - 1);
      return;
    }
  };
  check_ids("prompt", request.prompt);
  check_ids("forced", request.forced);
  validate(request.sampling);
  static thread_local std::mt19937_64 seeds{std::random_device{}()};
  auto sequence = std::make_unique<Sequence>(next_id_, std::move(request), seeds());
  const std::int64_t room = model_.kv().max_sequence_tokens();
  if (sequence->rows_needed() > room) {
    problems.add(
        "prompt of {} tokens and max_tokens {} need {} KV rows; a sequence can hold {} (engine.max_context or the "
        "cache's pool)",
        sequence->prompt_tokens(), sequence->request.max_tokens, sequence->rows_needed(), room);
  }
  problems.throw_if_any(ErrorKind::request, "the request cannot be served:");
  ++next_id_;
  const std::uint64_t id = sequence->id();
  insert_by_arrival(future_, std::move(sequence));
  return id;
}

void Engine::cancel(std::uint64_t id) {
  const std::lock_guard lock(cancelled_->mutex);
  cancelled_->ids.push_back(id);
}

void Engine::drop_cancelled() {
  std::vector<std::uint64_t> ids;
  {
    const std::lock_guard lock(cancelled_->mutex);
    ids.swap(cancelled_->ids);
  }
  for (const std::uint64_t id : ids) {
    for (auto* list : {&live_, &future_}) {
      const auto found =
          std::find_if(list->begin(), list->end(), [&](const auto& sequence) { return sequence->id() == id; });
      if (found == list->end()) continue;
      if (flight_ != nullptr) forget(**found);
      finish(**found, FinishReason::cancelled);
      finished_.push_back(std::move((*found)->result));
      list->erase(found);
    }
  }
}

void Engine::admit_arrivals() {
  const std::int64_t now = now_us();
  while (!future_.empty() && future_.front()->request.arrival_us <= now) {
    insert_by_arrival(live_, std::move(future_.front()));
    future_.erase(future_.begin());
  }
}

bool Engine::step() {
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed_ns = [&] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count();
  };
  drop_cancelled();
  const bool landed = flight_ != nullptr && !can_run_ahead();
  if (landed) land_all();
  admit_arrivals();
  if (live_.empty()) {
    metrics_.step_us += landed ? elapsed_ns() / 1000 : 0;
    metrics_.decode_step_ns += landed ? elapsed_ns() : 0;
    return landed;
  }
  if (flight_ != nullptr) assume_tokens();
  std::vector<Sequence*> scheduled;
  try {
    plan_step(scheduled);
  } catch (...) {
    if (flight_ != nullptr) land_all();
    throw;
  }
  const bool all_decode =
      std::all_of(scheduled.begin(), scheduled.end(), [](const Sequence* sequence) { return sequence->decoding(); });
  for (const Sequence* sequence : scheduled) {
    (sequence->decoding() ? metrics_.decode_tokens : metrics_.prefill_tokens) += sequence->scheduled;
  }
  const std::int64_t plugin_before = model_.kernel_nanoseconds();
  run_batch(scheduled);
  remove_finished();
  const std::int64_t elapsed = elapsed_ns();
  ++metrics_.steps;
  metrics_.step_us += elapsed / 1000;
  if (all_decode) {
    ++metrics_.decode_steps;
    metrics_.decode_step_ns += elapsed;
    metrics_.decode_plugin_ns += model_.kernel_nanoseconds() - plugin_before;
  }
  return true;
}

void Engine::plan_step(std::vector<Sequence*>& scheduled) {
  ++step_;
  std::vector<abi::SequenceView> views;
  views.reserve(live_.size());
  for (const auto& sequence : live_) {
    abi::SequenceView view{};
    view.size = sizeof view;
    view.state = sequence->state;
    view.id = sequence->id();
    view.priority = sequence->request.priority;
    view.preemptions = static_cast<std::uint32_t>(sequence->result.preemptions);
    view.arrival_us = sequence->request.arrival_us;
    view.prompt_tokens = sequence->prompt_tokens();
    view.generated_tokens = sequence->generated();
    view.computed_tokens = sequence->computed;
    view.pending_tokens = sequence->pending();
    view.remaining_tokens = sequence->request.max_tokens - sequence->generated();
    view.last_step = sequence->last_step;
    views.push_back(view);
  }
  abi::SchedulerView view{};
  view.size = sizeof view;
  view.sequence_count = static_cast<std::uint32_t>(views.size());
  view.sequences = views.data();
  view.step = step_;
  view.now_us = now_us();
  view.max_step_tokens = limits_.max_step_tokens;
  view.max_sequences = limits_.max_sequences;
  view.max_chunk = limits_.max_chunk;
  StepHost host(live_, model_.kv(), limits_, metrics_, *progress_, step_);
  const abi::StepBuilder builder = host.builder();
  SinkText text;
  abi::Status status;
  {
    const CountedCall counted(scheduler_.counter);
    status = scheduler_.plugin->step(view, builder, text.sink());
  }
  scheduled = std::move(host.scheduled);
  const bool broken =
      host.failure != nullptr || status != abi::Status::ok || !host.violation.empty() || scheduled.empty();
  if (!broken) return;
  for (Sequence* sequence : scheduled) model_.kv().cancel(sequence->id());
  if (host.failure != nullptr) std::rethrow_exception(host.failure);
  check_call(status, scheduler_.plugin.plugin(), fmt::format("building step {}", step_).c_str(), text);
  if (!host.violation.empty()) {
    throw_error(ErrorKind::run, "{} broke its contract in step {}: it {}", describe(scheduler_.plugin.plugin()), step_,
                host.violation);
  }
  throw_error(ErrorKind::run,
              "{} scheduled nothing in step {} although {} sequences are live; every step must make progress{}",
              describe(scheduler_.plugin.plugin()), step_, live_.size(), refusal_text(host.refusal, live_.size()));
}

void Engine::finish(Sequence& sequence, FinishReason reason, std::string error) {
  if (sequence.state == abi::SequenceState::running) model_.kv().close(sequence.id());
  sequence.state = abi::SequenceState::waiting;
  sequence.done = true;
  sequence.result.finish_reason = reason;
  sequence.result.error = std::move(error);
  sequence.result.finish_us = now_us();
  progress_->ended(sequence.id());
  scheduler_.plugin->finished(sequence.id());
}

void Engine::remove_finished() {
  const auto done =
      std::stable_partition(live_.begin(), live_.end(), [](const auto& sequence) { return !sequence->done; });
  for (auto it = done; it != live_.end(); ++it) finished_.push_back(std::move((*it)->result));
  live_.erase(done, live_.end());
}

std::vector<RequestResult> Engine::take_finished() {
  return std::exchange(finished_, {});
}

void Engine::sleep_until_arrival() const {
  const std::int64_t wait = future_.front()->request.arrival_us - now_us();
  if (wait > 0) std::this_thread::sleep_for(std::chrono::microseconds(std::min<std::int64_t>(wait, 50'000)));
}

void Engine::run(const std::atomic<int>* stop) {
  while (!idle() && (stop == nullptr || stop->load() == 0)) {
    if (!step() && !future_.empty()) sleep_until_arrival();
  }
}

}  // namespace facet
