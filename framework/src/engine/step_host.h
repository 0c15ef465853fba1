// The engine's side of abi::StepBuilder: every call of a scheduler is checked and takes effect at once.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "progress_watch.h"
#include "sequence.h"

namespace facet {

struct Engine::StepHost {
  StepHost(std::vector<std::unique_ptr<Sequence>>& live, KvManager& cache, const EngineLimits& bounds,
           EngineMetrics& counters, ProgressWatch& watch, std::uint64_t step_number);

  abi::StepBuilder builder();
  // Sequences that were scheduled, in the order the scheduler chose.
  std::vector<Sequence*> scheduled;
  // Text of the first call that broke a rule; empty when none did.
  std::string violation;
  // Plugin and reason of the last no_memory in this step; empty when there was none.
  std::string refusal;
  // What a cache policy threw inside a call. Schedulers are plugins, and no exception may pass through one.
  std::exception_ptr failure;

 private:
  abi::ScheduleResult schedule(std::uint64_t id, std::int64_t tokens, std::int64_t& granted);
  abi::ScheduleResult preempt(std::uint64_t id);
  abi::ScheduleResult invalid(std::string text);
  template <typename Call>
  abi::ScheduleResult guarded(Call&& call) noexcept;
  abi::ScheduleResult start(Sequence& sequence);
  void stop(Sequence& sequence);

  KvManager& kv_;
  const EngineLimits& limits_;
  EngineMetrics& metrics_;
  ProgressWatch& progress_;
  std::uint64_t step_;
  std::int64_t budget_;
  std::int64_t running_ = 0;
  std::unordered_map<std::uint64_t, Sequence*> by_id_;
};

}  // namespace facet
