#include "step_host.h"

namespace facet {

Engine::StepHost::StepHost(std::vector<std::unique_ptr<Sequence>>& live, KvManager& cache, const EngineLimits& bounds,
                           EngineMetrics& counters, ProgressWatch& watch, std::uint64_t step_number)
    : kv_(cache),
      limits_(bounds),
      metrics_(counters),
      progress_(watch),
      step_(step_number),
      budget_(bounds.max_step_tokens) {
  for (const auto& sequence : live) {
    by_id_.emplace(sequence->id(), sequence.get());
    progress_.observe(sequence->id(), sequence->computed, sequence->generated());
    sequence->scheduled = 0;
    if (sequence->state == abi::SequenceState::running) ++running_;
  }
}

template <typename Call>
abi::ScheduleResult Engine::StepHost::guarded(Call&& call) noexcept {
  try {
    return call();
  } catch (...) {
    if (failure == nullptr) failure = std::current_exception();
    return abi::ScheduleResult::invalid;
  }
}

abi::StepBuilder Engine::StepHost::builder() {
  abi::StepBuilder built{};
  built.size = sizeof built;
  built.context = this;
  built.schedule = [](void* context, std::uint64_t sequence, std::int64_t tokens, std::int64_t* granted) {
    auto* host = static_cast<StepHost*>(context);
    return host->guarded([&] { return host->schedule(sequence, tokens, *granted); });
  };
  built.preempt = [](void* context, std::uint64_t sequence) {
    auto* host = static_cast<StepHost*>(context);
    return host->guarded([&] { return host->preempt(sequence); });
  };
  return built;
}

abi::ScheduleResult Engine::StepHost::invalid(std::string text) {
  if (violation.empty()) violation = std::move(text);
  return abi::ScheduleResult::invalid;
}

abi::ScheduleResult Engine::StepHost::schedule(std::uint64_t id, std::int64_t tokens, std::int64_t& granted) {
  granted = 0;
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return invalid(fmt::format("scheduled sequence {}, which is not live", id));
  Sequence& sequence = *found->second;
  if (sequence.scheduled > 0) return invalid(fmt::format("scheduled sequence {} twice in one step", id));
  if (tokens < 1 || tokens > limits_.max_chunk) {
    return invalid(fmt::format("scheduled {} tokens of sequence {}; allowed are 1 to max_chunk = {}", tokens, id,
                               limits_.max_chunk));
  }
  if (budget_ == 0) return abi::ScheduleResult::no_budget;
  const bool was_waiting = sequence.state == abi::SequenceState::waiting;
  if (was_waiting) {
    const abi::ScheduleResult started = start(sequence);
    if (started != abi::ScheduleResult::scheduled) return started;
  }
  const std::int64_t count = std::min({tokens, sequence.pending(), budget_});
  if (kv_.reserve(id, count) == KvResult::no_memory) {
    refusal = kv_.last_refusal();
    if (was_waiting) stop(sequence);
    return abi::ScheduleResult::no_memory;
  }
  if (was_waiting && !sequence.admitted) {
    sequence.admitted = true;
    sequence.result.cached_tokens = sequence.computed;
  }
  if (was_waiting) metrics_.cached_tokens += sequence.computed;
  sequence.scheduled = count;
  sequence.last_step = step_;
  budget_ -= count;
  granted = count;
  scheduled.push_back(&sequence);
  return abi::ScheduleResult::scheduled;
}

abi::ScheduleResult Engine::StepHost::start(Sequence& sequence) {
  if (running_ >= limits_.max_sequences) return abi::ScheduleResult::no_slot;
  // The last known token is always computed, because its logits are wanted; scoring wants the logits of all of them.
  const std::int64_t limit = sequence.request.score ? 0 : static_cast<std::int64_t>(sequence.tokens.size()) - 1;
  sequence.computed = kv_.open(sequence.id(), sequence.tokens, sequence.request.salt, limit);
  sequence.state = abi::SequenceState::running;
  ++running_;
  return abi::ScheduleResult::scheduled;
}

void Engine::StepHost::stop(Sequence& sequence) {
  kv_.close(sequence.id());
  sequence.computed = 0;
  sequence.state = abi::SequenceState::waiting;
  --running_;
}

abi::ScheduleResult Engine::StepHost::preempt(std::uint64_t id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return invalid(fmt::format("preempted sequence {}, which is not live", id));
  Sequence& sequence = *found->second;
  if (sequence.state != abi::SequenceState::running || sequence.scheduled > 0) {
    return invalid(fmt::format("preempted sequence {}, which {}", id,
                               sequence.scheduled > 0 ? "works in this step" : "is not running"));
  }
  const std::int64_t vain = progress_.preempted(id);
  if (vain > kMaxVainPreemptions) {
    return invalid(
        fmt::format("preempted sequence {} for the {}th time while no request gained a row or a token or ended; "
                    "allowed are {}",
                    id, vain, kMaxVainPreemptions));
  }
  stop(sequence);
  ++sequence.result.preemptions;
  ++metrics_.preemptions;
  return abi::ScheduleResult::scheduled;
}

}  // namespace facet
