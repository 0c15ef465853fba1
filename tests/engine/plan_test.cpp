// What a scheduler is told, and what its calls leave behind: abi/scheduler.h as seen from a plugin.
#include <gmock/gmock.h>

#include "world.h"

namespace facet::test {
namespace {

using abi::ScheduleResult;

// Blocks of 4 rows; 16 rows in the global pool, plenty in the sliding one.
WorldOptions tight_options() {
  WorldOptions options;
  options.sliding = options.global = "paged";
  options.sliding_options = {{"block_tokens", std::int64_t{4}}, {"prefix_reuse", false}};
  options.global_options = {
      {"block_tokens", std::int64_t{4}}, {"pool_tokens", std::int64_t{16}}, {"prefix_reuse", false}};
  return options;
}

std::vector<std::int64_t> free_blocks(const World& world) {
  std::vector<std::int64_t> blocks;
  for (const abi::KvUsage& usage : world.model->kv().usage()) blocks.push_back(usage.blocks_free);
  return blocks;
}

ScheduleResult schedule(const abi::StepBuilder& builder, std::uint64_t id, std::int64_t tokens,
                        std::int64_t expected_grant) {
  std::int64_t granted = -1;
  const ScheduleResult result = builder.schedule(builder.context, id, tokens, &granted);
  EXPECT_EQ(granted, expected_grant) << "sequence " << id << ", " << tokens << " tokens";
  return result;
}

TEST(View, SaysWhatIsTrueOfEverySequence) {
  std::map<std::uint64_t, Ids> said;
  std::uint64_t last_worked = 0;
  FunctionScheduler scheduler([&](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    EXPECT_EQ(view.size, sizeof view);
    EXPECT_EQ(view.max_step_tokens, 20);
    EXPECT_EQ(view.max_chunk, 6);
    EXPECT_EQ(view.max_sequences, 4);
    EXPECT_EQ(view.now_us, static_cast<std::int64_t>(view.step) * 10);
    for (std::uint32_t i = 0; i < view.sequence_count; ++i) {
      const abi::SequenceView& sequence = view.sequences[i];
      // Request 1 came last and is listed last.
      EXPECT_EQ(sequence.id, view.sequence_count == 2 ? 2 - i : sequence.id);
      EXPECT_EQ(sequence.arrival_us, sequence.id == 1 ? 7 : 3);
      EXPECT_EQ(sequence.priority, sequence.id == 1 ? 5 : -5);
      EXPECT_EQ(sequence.prompt_tokens, sequence.id == 1 ? 14 : 9);
      const auto generated = static_cast<std::int64_t>(said[sequence.id].size());
      EXPECT_EQ(sequence.generated_tokens, generated);
      EXPECT_EQ(sequence.remaining_tokens, 8 - generated);
      EXPECT_EQ(sequence.computed_tokens + sequence.pending_tokens, sequence.prompt_tokens + generated);
      if (sequence.state == abi::SequenceState::waiting) {
        EXPECT_EQ(sequence.computed_tokens, 0);
      }
      if (sequence.id == 2) {
        EXPECT_EQ(sequence.last_step, last_worked);
        EXPECT_EQ(sequence.preemptions, view.step > 4 ? 1u : 0u);
      }
    }
    for (std::uint32_t i = 0; i < view.sequence_count; ++i) {
      const abi::SequenceView& sequence = view.sequences[i];
      if (sequence.id == 2 && view.step == 4) {
        EXPECT_EQ(builder.preempt(builder.context, 2), ScheduleResult::scheduled);
        continue;
      }
      if (sequence.id == 2 && view.step == 5) {
        EXPECT_EQ(sequence.state, abi::SequenceState::waiting);
        continue;
      }
      const std::int64_t tokens = std::min(view.max_chunk, sequence.pending_tokens);
      EXPECT_EQ(schedule(builder, sequence.id, view.max_chunk, tokens), ScheduleResult::scheduled);
      if (sequence.id == 2) last_worked = view.step;
    }
    return abi::Status::ok;
  });
  WorldOptions options;
  options.max_step_tokens = 20;
  options.max_chunk = 6;
  World world(options, scheduler);
  std::int64_t tick = 0;
  world.engine->now_us = [&tick] { return tick * 10; };
  world.engine->on_token = [&](std::uint64_t id, std::int32_t token) { said[id].push_back(token); };
  for (const std::uint64_t id : {1u, 2u}) {
    Request request;
    request.prompt = some_ids(id == 1 ? 14 : 9, id);
    request.max_tokens = 8;
    request.arrival_us = id == 1 ? 7 : 3;
    request.priority = id == 1 ? 5 : -5;
    world.engine->submit(request);
  }
  std::size_t finished = 0;
  for (tick = 1; !world.engine->idle() && tick < 100; ++tick) {
    for (const RequestResult& result : world.step()) {
      EXPECT_TRUE(is_undisturbed(result, 8));
      EXPECT_EQ(result.ids, said.at(result.id));
      ++finished;
    }
  }
  EXPECT_EQ(finished, 2u);
  EXPECT_THAT(scheduler.ended, testing::UnorderedElementsAre(1, 2));
}

TEST(Schedule, TheBudgetOfAStepIsSharedOut) {
  FunctionScheduler scheduler([](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    if (view.step == 1) {
      EXPECT_EQ(schedule(builder, 1, 6, 6), ScheduleResult::scheduled);
      EXPECT_EQ(schedule(builder, 2, 6, 4), ScheduleResult::scheduled);
      EXPECT_EQ(schedule(builder, 3, 6, 0), ScheduleResult::no_budget);
      return abi::Status::ok;
    }
    std::int64_t granted = 0;
    for (std::uint32_t i = 0; i < view.sequence_count; ++i)
      builder.schedule(builder.context, view.sequences[i].id, 6, &granted);
    return abi::Status::ok;
  });
  WorldOptions options;
  options.max_step_tokens = 10;
  options.max_chunk = 6;
  World world(options, scheduler);
  for (std::uint64_t i = 0; i < 3; ++i) world.ask(some_ids(8, i), 2);
  for (const auto& [id, result] : world.finish(50)) EXPECT_TRUE(is_undisturbed(result, 8)) << id;
}

// no_memory leaves a waiting sequence waiting, without rows or a slot, and a running one with what it had.
TEST(Schedule, NoMemoryLeavesEverythingAsItWas) {
  World* seen = nullptr;
  FunctionScheduler scheduler([&](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    if (view.step == 1) {
      EXPECT_EQ(schedule(builder, 1, 12, 12), ScheduleResult::scheduled);
      const std::vector<std::int64_t> before = free_blocks(*seen);
      EXPECT_EQ(schedule(builder, 2, 5, 0), ScheduleResult::no_memory);
      EXPECT_EQ(free_blocks(*seen), before);
      EXPECT_EQ(seen->model->kv().usage()[0].sequences, 1);
      return abi::Status::ok;
    }
    if (view.step == 2) {
      EXPECT_EQ(view.sequences[1].state, abi::SequenceState::waiting);
      EXPECT_EQ(schedule(builder, 2, 4, 4), ScheduleResult::scheduled);
      const std::vector<std::int64_t> before = free_blocks(*seen);
      EXPECT_EQ(before[1], 0);
      EXPECT_EQ(schedule(builder, 1, 1, 0), ScheduleResult::no_memory);
      EXPECT_EQ(free_blocks(*seen), before);
      return abi::Status::ok;
    }
    // One after the other.
    EXPECT_NE(view.sequence_count, 0u);
    if (view.sequence_count == 2 && view.sequences[1].state == abi::SequenceState::running) {
      EXPECT_EQ(builder.preempt(builder.context, 2), ScheduleResult::scheduled);
    }
    std::int64_t granted = 0;
    builder.schedule(builder.context, view.sequences[0].id, view.max_chunk, &granted);
    return abi::Status::ok;
  });
  World world(tight_options(), scheduler);
  seen = &world;
  world.ask(some_ids(12, 1), 4);
  world.ask(some_ids(6, 2), 4);
  const auto results = world.finish(50);
  EXPECT_EQ(results.size(), 2u);
  for (const auto& [id, result] : results) EXPECT_TRUE(is_undisturbed(result, 8)) << id;
  EXPECT_TRUE(world.nothing_held());
}

// The rows of a plan that is thrown away are free again.
TEST(Schedule, ARefusedPlanGivesItsRowsBack) {
  FunctionScheduler scheduler([](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    std::int64_t granted = 0;
    for (std::uint32_t i = 0; i < view.sequence_count; ++i)
      builder.schedule(builder.context, view.sequences[i].id, view.max_chunk, &granted);
    return view.step == 2 ? abi::Status::failed : abi::Status::ok;
  });
  World world(tight_options(), scheduler);
  world.ask(some_ids(4, 1), 4);
  world.step();
  const std::vector<std::int64_t> before = free_blocks(world);
  EXPECT_THROW(world.step(), Error);
  EXPECT_EQ(free_blocks(world), before);
  for (const auto& [id, result] : world.finish(50)) EXPECT_TRUE(is_undisturbed(result, 8)) << id;
}

TEST(Limits, MoreThanTheModelWasPlannedForIsRefused) {
  World world({});
  try {
    Engine engine(*world.model, world.scheduler, EngineLimits{4, 65, 64});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.full_text(), testing::AllOf(testing::HasSubstr("65"), testing::HasSubstr("64")));
  }
}

// Cache and scheduler outlive an engine; what it leaves unfinished must not be taken for requests of the next one.
TEST(Engine, UnfinishedRequestsAreForgottenWithIt) {
  for (const char* name : {"static", "continuous"}) {
    WorldOptions options;
    options.scheduler = name;
    options.max_sequences = 2;
    World world(options);
    for (std::uint64_t i = 0; i < 3; ++i) world.ask(some_ids(5, i), 20);
    world.step();
    const EngineLimits limits{options.max_sequences, options.max_step_tokens, options.max_chunk};
    world.engine.reset();
    EXPECT_TRUE(world.nothing_held());
    world.engine = std::make_unique<Engine>(*world.model, world.scheduler, limits);
    for (std::uint64_t i = 0; i < 3; ++i) world.ask(some_ids(6, 10 + i), 4);
    const auto results = world.finish(100);
    EXPECT_EQ(results.size(), 3u);
    for (const auto& [id, result] : results) EXPECT_TRUE(is_undisturbed(result, 8)) << name;
  }
  FunctionScheduler scheduler([](const abi::SchedulerView&, const abi::StepBuilder& builder, abi::TextSink) {
    EXPECT_EQ(schedule(builder, 2, 1, 1), ScheduleResult::scheduled);
    return abi::Status::ok;
  });
  World world({}, scheduler);
  for (std::uint64_t i = 0; i < 2; ++i) world.ask(some_ids(5, i), 20);
  world.step();
  world.engine.reset();
  EXPECT_THAT(scheduler.ended, testing::UnorderedElementsAre(1, 2));
}

TEST(Metrics, CountTokensStepsAndPeaks) {
  WorldOptions options;
  options.sliding = options.global = "paged";
  options.max_chunk = 6;
  World world(options);
  const Ids prompt = some_ids(20, 1);
  world.ask(prompt, 5);
  world.finish();
  const EngineMetrics& metrics = world.engine->metrics();
  EXPECT_EQ(metrics.steps, 8);  // chunks of 6, 6, 6 and 2, then four ids more
  EXPECT_EQ(metrics.prefill_tokens, 20);
  EXPECT_EQ(metrics.decode_tokens, 4);
  EXPECT_EQ(metrics.decode_steps, 4);
  EXPECT_EQ(metrics.cached_tokens, 0);
  EXPECT_EQ(metrics.preemptions, 0);
  // Rows are 16 bytes, blocks 16 rows. With 22 rows the sliding group still needs row 15; with 23 it gives up a block.
  EXPECT_EQ(metrics.peak_kv_used, 2u * 22 * 16);
  EXPECT_EQ(metrics.peak_kv_reserved, 2u * 2 * 256);
  world.engine->reset_metrics();
  world.ask(prompt, 5);
  world.finish();
  EXPECT_EQ(metrics.prefill_tokens, 4);
  EXPECT_EQ(metrics.cached_tokens, 16);
}

// A request that ends in its first step has held rows too.
TEST(Metrics, PeaksCountRowsOfTheLastStep) {
  World world({});
  Request request;
  request.prompt = some_ids(30, 2);
  request.max_tokens = 0;
  world.engine->submit(request);
  world.finish();
  EXPECT_EQ(world.engine->metrics().steps, 1);
  EXPECT_EQ(world.engine->metrics().peak_kv_used, 2u * 30 * 16);
}

}  // namespace
}  // namespace facet::test
