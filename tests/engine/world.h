// A whole engine over a model without weights: cache and scheduler plugins as built, loaded as the program loads them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "facet/backend/cpu_backend.h"
#include "facet/engine/engine.h"
#include "stub_model.h"

namespace facet::test {

using OptionValues = std::map<std::string, OptionData>;

struct WorldOptions {
  std::string sliding = "static", global = "static";  // cache policies; rows are stored as f32
  OptionValues sliding_options, global_options;
  std::string scheduler = "continuous";
  OptionValues scheduler_options;
  std::int64_t window = 8;
  std::int64_t max_sequences = 4;
  std::int64_t max_context = 64;
  std::int64_t max_step_tokens = 64;
  std::int64_t max_chunk = 64;  // of a sequence in one step
  bool run_ahead = false;
};

// A scheduler made of a function, for plans that no real one makes. It keeps the rules only if the function does.
class FunctionScheduler final : public abi::Scheduler {
 public:
  using Plan = std::function<abi::Status(const abi::SchedulerView&, const abi::StepBuilder&, abi::TextSink)>;
  explicit FunctionScheduler(Plan plan) : plan_(std::move(plan)) {}
  abi::Status step(const abi::SchedulerView& view, const abi::StepBuilder& builder,
                   abi::TextSink error) noexcept override {
    return plan_(view, builder, error);
  }
  void finished(std::uint64_t sequence) noexcept override { ended.push_back(sequence); }

  std::vector<std::uint64_t> ended;

 private:
  Plan plan_;
};

class World {
 public:
  explicit World(const WorldOptions& options);
  // With a scheduler of the test's own, called 'rogue'.
  World(const WorldOptions& options, FunctionScheduler& scheduler);

  const WorldOptions options;
  std::unique_ptr<HostServices> services;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<PluginRegistry> registry;
  std::unique_ptr<StubModel> model;
  SchedulerInstance scheduler;
  std::unique_ptr<Engine> engine;

  // Submits a greedy request and returns its id.
  std::uint64_t ask(Ids prompt, std::int64_t max_tokens);
  // Steps until nothing is live; returns results by id. Fails the test after `most_steps`.
  std::map<std::uint64_t, RequestResult> finish(std::int64_t most_steps = 20'000);
  // One step, then what finished in it.
  std::vector<RequestResult> step();
  // True when no sequence is open, no block is held and no row is used.
  testing::AssertionResult nothing_held() const;

 private:
  void build_model();
};

// It did not fail, and its ids are those it gives alone (as many of them as there are).
testing::AssertionResult is_undisturbed(const RequestResult& result, std::int64_t window);

// Ids in [1, 500) that depend on `seed`.
Ids some_ids(std::int64_t count, std::uint64_t seed);

}  // namespace facet::test
