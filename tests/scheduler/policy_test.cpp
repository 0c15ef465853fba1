// What each scheduler promises, on traffic small enough to know the answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plugin_under_test.h"
#include "sim_core.h"

namespace facet::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr std::uint64_t kLimit = 100000;

OptionText by_length() {
  return {{"order", std::string("length")}};
}
OptionText integer(const char* name, std::int64_t value) {
  return {{name, value}};
}

class BothSchedulers : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Plugins, BothSchedulers, testing::Values("scheduler_static", "scheduler_continuous"),
                         [](const auto& plugin) { return std::string(plugin.param).substr(10); });

// Pool of 64 rows in pages of 16: an exact fit is legal, one row more is not, and nobody behind it is blocked.
TEST_P(BothSchedulers, ExactFitOfTheCacheRunsAndBlocksNobody) {
  struct Case {
    std::int64_t prompt, max_new;
    bool accepted;
  };
  for (const Case& given : {Case{48, 16, true}, Case{49, 16, true}, Case{50, 16, false}, Case{65, 1, false}}) {
    SCOPED_TRACE(given.prompt);
    const PluginUnderTest plugin(GetParam(), {});
    SimConfig config;
    config.pool_blocks = 4;
    SimCore core(config, plugin.scheduler());
    EXPECT_EQ(core.add(1, {given.prompt, given.max_new}), given.accepted);
    ASSERT_TRUE(core.add(2, {4, 4}));
    EXPECT_TRUE(core.run(kLimit));
    EXPECT_THAT(core.faults(), IsEmpty());
    EXPECT_EQ(core.of(2).generated, 4);
    if (given.accepted) {
      EXPECT_EQ(core.of(1).generated, given.max_new);
    }
    EXPECT_EQ(core.used_blocks(), 0);
  }
}

TEST_P(BothSchedulers, DroppedRequestsLeaveNothingBehind) {
  const PluginUnderTest plugin(GetParam(), {});
  SimConfig config;
  config.max_sequences = 2;
  config.pool_blocks = 16;
  SimCore core(config, plugin.scheduler());
  // 0 decodes, 1 is dropped during its prompt, 2 in the queue, 3 runs to the end.
  ASSERT_TRUE(core.add(0, {8, 60}));
  ASSERT_TRUE(core.add(1, {150, 5}));
  ASSERT_TRUE(core.add(2, {8, 5, 0, 2}));
  ASSERT_TRUE(core.add(3, {8, 5, 0, 2}));
  core.step();
  core.step();
  core.cancel(2);
  core.cancel(1);
  core.step();
  core.step();
  core.cancel(0);
  core.cancel(0);
  EXPECT_TRUE(core.run(kLimit));
  EXPECT_THAT(core.faults(), IsEmpty());
  EXPECT_EQ(core.of(2).fed, 0);
  EXPECT_EQ(core.of(3).generated, 5);
  EXPECT_EQ(core.used_blocks(), 0);
}

// After a preemption everything known is computed again, prompt and output.
TEST_P(BothSchedulers, PreemptionRecomputesPromptAndOutput) {
  const PluginUnderTest plugin(GetParam(), {});
  SimConfig config;
  config.block = 1;
  config.pool_blocks = 40;
  SimCore core(config, plugin.scheduler());
  ASSERT_TRUE(core.add(0, {10, 25}));
  ASSERT_TRUE(core.add(1, {10, 25}));
  EXPECT_TRUE(core.run(kLimit));
  EXPECT_THAT(core.faults(), IsEmpty());
  EXPECT_EQ(core.of(0).preemptions, 0u);
  ASSERT_EQ(core.of(1).preemptions, 1u);
  EXPECT_EQ(core.of(1).generated, 25);
  // 20 rows each fill the cache after 11 outputs: the twelfth step of the younger one never comes, so 20 rows are lost.
  EXPECT_EQ(core.of(1).fed, 34 + 20);
  EXPECT_THAT(core.of(1).worked, testing::Contains(testing::Pair(testing::_, 21)));
}

TEST(StaticScheduler, IdleMembersWaitForThePromptsOfTheBatch) {
  const PluginUnderTest plugin("scheduler_static", {});
  SimConfig config;
  config.max_chunk = 16;
  SimCore core(config, plugin.scheduler());
  ASSERT_TRUE(core.add(0, {8, 3}));
  ASSERT_TRUE(core.add(1, {40, 2}));
  ASSERT_TRUE(core.run(kLimit));
  EXPECT_THAT(core.of(0).worked, ElementsAre(Pair(1, 8), Pair(4, 1), Pair(5, 1)));
  EXPECT_THAT(core.of(1).worked, ElementsAre(Pair(1, 16), Pair(2, 16), Pair(3, 8), Pair(4, 1)));
  EXPECT_THAT(core.of(1).sampled, ElementsAre(Pair(3, 1), Pair(4, 1)));
}

TEST(StaticScheduler, NextBatchStartsWhenTheLastHasFinished) {
  const PluginUnderTest plugin("scheduler_static", integer("batch_size", 2));
  SimCore core({}, plugin.scheduler());
  ASSERT_TRUE(core.add(0, {4, 2}));
  ASSERT_TRUE(core.add(1, {4, 9}));
  ASSERT_TRUE(core.add(2, {4, 1}));
  ASSERT_TRUE(core.run(kLimit));
  EXPECT_EQ(core.of(0).finish_step, 2u);
  EXPECT_EQ(core.of(1).finish_step, 9u);
  EXPECT_EQ(core.of(2).first_token_step, 10u);
}

TEST(StaticScheduler, LengthOrderGroupsEqualLengths) {
  OptionText options = by_length();
  options["batch_size"] = std::int64_t{2};
  const PluginUnderTest plugin("scheduler_static", options);
  SimCore core({}, plugin.scheduler());
  // Two long and two short ones in turn: sorted, the short ones share the first batch.
  ASSERT_TRUE(core.add(0, {30, 8}));
  ASSERT_TRUE(core.add(1, {5, 4}));
  ASSERT_TRUE(core.add(2, {31, 8}));
  ASSERT_TRUE(core.add(3, {6, 4}));
  ASSERT_TRUE(core.run(kLimit));
  EXPECT_EQ(core.of(1).first_token_step, 1u);
  EXPECT_EQ(core.of(3).first_token_step, 1u);
  EXPECT_EQ(core.of(0).first_token_step, 5u);
  EXPECT_EQ(core.of(2).first_token_step, 5u);
}

TEST(StaticScheduler, WhatDoesNotFitWaitsForTheNextBatch) {
  const PluginUnderTest plugin("scheduler_static", {});
  SimConfig config;
  config.pool_blocks = 4;
  SimCore core(config, plugin.scheduler());
  for (std::uint64_t id = 0; id < 3; ++id) ASSERT_TRUE(core.add(id, {30, 3}));
  ASSERT_TRUE(core.run(kLimit));
  EXPECT_EQ(core.of(0).finish_step, core.of(1).finish_step);
  EXPECT_GT(core.of(2).first_token_step, core.of(1).finish_step);
  EXPECT_EQ(core.preemptions(), 0);
}

TEST(StaticScheduler, PreemptedMembersAreFirstInTheNextBatch) {
  OptionText options = by_length();
  options["batch_size"] = std::int64_t{2};
  const PluginUnderTest plugin("scheduler_static", options);
  SimConfig config;
  config.block = 1;
  config.pool_blocks = 40;
  SimCore core(config, plugin.scheduler());
  ASSERT_TRUE(core.add(0, {10, 25}));
  ASSERT_TRUE(core.add(1, {11, 25}));
  for (std::uint64_t id = 2; id < 8; ++id) ASSERT_TRUE(core.add(id, {4, 2, 0, 5}));
  ASSERT_TRUE(core.run(kLimit));
  ASSERT_EQ(core.of(1).preemptions, 1u);
  EXPECT_EQ(core.of(1).worked.upper_bound(core.of(0).finish_step)->first, core.of(0).finish_step + 1);
}

struct HogRun {
  std::uint64_t hog_finish;
  std::uint64_t short_first;
  std::int64_t stream_gain;  // outputs of the decoding stream in the hog's first 100 steps
};

// A stream that decodes, a hog of 6,400 tokens at step 2, and `newcomers` of `length` tokens, one a step from step 7
// on.
HogRun run_hog(const OptionText& options, int newcomers, std::int64_t length) {
  const PluginUnderTest plugin("scheduler_continuous", options);
  SimConfig config;
  config.max_sequences = 64;
  SimCore core(config, plugin.scheduler());
  EXPECT_TRUE(core.add(0, {4, 4000}));
  EXPECT_TRUE(core.add(1, {6400, 1, 0, 2}));
  for (int i = 0; i < newcomers; ++i)
    EXPECT_TRUE(core.add(static_cast<std::uint64_t>(2 + i), {length, 1, 0, static_cast<std::uint64_t>(7 + i)}));
  while (core.is_live(1) && core.faults().empty()) core.step();
  EXPECT_THAT(core.faults(), IsEmpty());
  std::int64_t gain = 0;
  for (std::uint64_t step = 2; step < 102; ++step) gain += core.of(0).sampled.contains(step) ? 1 : 0;
  return {core.of(1).finish_step - 1, newcomers > 0 ? core.of(2).first_token_step - 6 : 0, gain};
}

TEST(ContinuousScheduler, LongPromptKeepsNobodyOut) {
  const HogRun alone = run_hog({}, 0, 0);
  EXPECT_EQ(alone.hog_finish, 102u);  // 6,400 / (64 - 1 for the stream)
  EXPECT_EQ(alone.stream_gain, 100);
  const HogRun beside = run_hog({}, 1, 10);
  EXPECT_EQ(beside.short_first, 1u);
  EXPECT_EQ(beside.stream_gain, 100);
  EXPECT_LE(beside.hog_finish, alone.hog_finish + 1);
  // A newcomer that needs several shares: 12.6 tokens a step.
  EXPECT_LE(run_hog({}, 1, 40).short_first, 4u);
}

TEST(ContinuousScheduler, LongPromptIsSlowedByNoMoreThanTheShare) {
  const double alone = static_cast<double>(run_hog({}, 0, 0).hog_finish);
  for (const double share : {0.0, 0.1, 0.25, 1.0}) {
    SCOPED_TRACE(share);
    // More newcomers than the share can ever serve.
    const HogRun crowded = run_hog({{"newcomer_share", share}}, 1000, 30);
    EXPECT_LE(static_cast<double>(crowded.hog_finish), alone * (1 + share) + 1);
    if (share > 0) {
      EXPECT_GT(static_cast<double>(crowded.hog_finish), alone * (1 + share * 0.8));
    }
    if (share > 0) {
      EXPECT_LE(crowded.short_first, 7u);
    }
  }
}

TEST(ContinuousScheduler, TinyShareIsSavedUpUntilItIsAToken) {
  OptionText options = integer("prefill_tokens", 3);
  options["newcomer_share"] = 0.1;
  // 3 x 0.1 / 1.1 = 0.27 tokens a step: a newcomer of 2 tokens waits 8 steps.
  EXPECT_EQ(run_hog(options, 1, 2).short_first, 8u);
}

TEST(ContinuousScheduler, PromptTokensOfAStepAreBounded) {
  const PluginUnderTest plugin("scheduler_continuous", integer("prefill_tokens", 10));
  SimConfig config;
  config.max_sequences = 20;
  SimCore core(config, plugin.scheduler());
  for (std::uint64_t id = 0; id < 12; ++id) ASSERT_TRUE(core.add(id, {25, 30}));
  ASSERT_TRUE(core.run(kLimit));
  std::map<std::uint64_t, std::int64_t> prompt_tokens;
  for (std::uint64_t id = 0; id < 12; ++id)
    for (const auto& [step, tokens] : core.of(id).worked)
      if (step <= core.of(id).first_token_step) prompt_tokens[step] += tokens;
  for (const auto& [step, tokens] : prompt_tokens) EXPECT_LE(tokens, 10) << "step " << step;
  EXPECT_EQ(prompt_tokens.size(), 30u);  // 300 tokens: no step gave away a token
}

TEST(ContinuousScheduler, PartialPromptsAreBounded) {
  const PluginUnderTest plugin("scheduler_continuous", integer("max_prefill_sequences", 2));
  SimConfig config;
  config.max_chunk = 7;
  SimCore core(config, plugin.scheduler());
  for (std::uint64_t id = 0; id < 8; ++id) ASSERT_TRUE(core.add(id, {50, 3}));
  while (!core.live().empty() && core.faults().empty()) {
    core.step();
    const auto partial = std::count_if(core.live().begin(), core.live().end(), [](const SimSequence& sequence) {
      return sequence.running && sequence.generated == 0;
    });
    EXPECT_LE(partial, 2);
  }
  EXPECT_THAT(core.faults(), IsEmpty());
}

TEST(ContinuousScheduler, EveryDecodingSequenceWorksInEveryStep) {
  const PluginUnderTest plugin("scheduler_continuous", {});
  SimCore core({}, plugin.scheduler());
  for (std::uint64_t id = 0; id < 20; ++id)
    ASSERT_TRUE(core.add(id, {static_cast<std::int64_t>(3 + 17 * id), 20, 0, id}));
  ASSERT_TRUE(core.run(kLimit));
  for (std::uint64_t id = 0; id < 20; ++id)
    EXPECT_EQ(core.of(id).finish_step, core.of(id).first_token_step + 19) << "sequence " << id;
}

TEST(ContinuousScheduler, NobodyStartsWhoseTokensTheStepCannotHold) {
  const PluginUnderTest plugin("scheduler_continuous", {});
  SimConfig config;
  config.max_step_tokens = 4;
  SimCore core(config, plugin.scheduler());
  for (std::uint64_t id = 0; id < 6; ++id) ASSERT_TRUE(core.add(id, {1, 60}));
  ASSERT_TRUE(core.run(kLimit));
  for (std::uint64_t id = 0; id < 6; ++id) EXPECT_EQ(core.of(id).finish_step, id < 4 ? 60u : 120u);
}

TEST(StaticScheduler, MoreMembersThanTokensTakeTurns) {
  const PluginUnderTest plugin("scheduler_static", {});
  SimConfig config;
  config.max_step_tokens = 4;
  SimCore core(config, plugin.scheduler());
  for (std::uint64_t id = 0; id < 6; ++id) ASSERT_TRUE(core.add(id, {1, 60}));
  for (int i = 0; i < 42; ++i) core.step();
  EXPECT_THAT(core.faults(), IsEmpty());
  // Two steps of prompts, then 160 outputs for six.
  for (const SimSequence& sequence : core.live()) EXPECT_NEAR(static_cast<double>(sequence.generated), 27.5, 1.5);
}

std::vector<std::uint64_t> order_of_first_tokens(const OptionText& options, const std::vector<SimRequest>& requests) {
  const PluginUnderTest plugin("scheduler_continuous", options);
  SimConfig config;
  config.max_sequences = 1;
  SimCore core(config, plugin.scheduler());
  for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_TRUE(core.add(i, requests[i]));
  EXPECT_TRUE(core.run(kLimit));
  std::vector<std::uint64_t> order(requests.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::uint64_t a, std::uint64_t b) {
    return core.of(a).first_token_step < core.of(b).first_token_step;
  });
  return order;
}

TEST(ContinuousScheduler, OrdersByPriorityThenByArrivalOrLength) {
  const std::vector<SimRequest> requests = {{30, 5, 0, 1}, {20, 5, 1, 1}, {10, 5, 0, 1}, {5, 5, 1, 1}, {40, 5, -1, 1}};
  EXPECT_THAT(order_of_first_tokens({}, requests), ElementsAre(1, 3, 0, 2, 4));
  EXPECT_THAT(order_of_first_tokens(by_length(), requests), ElementsAre(3, 1, 2, 0, 4));
}

TEST(ContinuousScheduler, WaitingCountsAsMuchAsPriority) {
  // 0 runs to step 40. 1 waits since step 1; 2 has one level more and came 9 or 11 steps later.
  const auto order = [](std::uint64_t arrival) {
    return order_of_first_tokens(integer("ageing_steps", 10), {{4, 40, 5, 1}, {4, 4, 0, 1}, {4, 4, 1, arrival}});
  };
  EXPECT_THAT(order(10), ElementsAre(0, 2, 1));
  EXPECT_THAT(order(12), ElementsAre(0, 1, 2));
}

TEST(ContinuousScheduler, PreemptsTheLowestPriorityThenTheYoungest) {
  const PluginUnderTest plugin("scheduler_continuous", {});
  SimConfig config;
  config.block = 1;
  config.pool_blocks = 60;
  SimCore core(config, plugin.scheduler());
  ASSERT_TRUE(core.add(0, {10, 30, 0, 1}));
  ASSERT_TRUE(core.add(1, {10, 30, -1, 1}));
  ASSERT_TRUE(core.add(2, {10, 30, 0, 2}));
  while (core.preemptions() == 0 && core.faults().empty()) core.step();
  EXPECT_EQ(core.of(1).preemptions, 1u);
  EXPECT_TRUE(core.run(kLimit));
  EXPECT_THAT(core.faults(), IsEmpty());
  EXPECT_EQ(core.of(0).preemptions, 0u);
  // It came back once there was room for it, not to be thrown out again.
  EXPECT_EQ(core.preemptions(), core.of(1).preemptions + core.of(2).preemptions);
  EXPECT_LE(core.preemptions(), 2);
}

// Newcomers that always find a little room must not keep the rows that a long prompt waits for.
TEST(ContinuousScheduler, NewcomersDoNotTakeTheMemoryOfAStalledPrompt) {
  const PluginUnderTest plugin("scheduler_continuous", {});
  SimConfig config;
  config.block = 1;
  config.pool_blocks = 400;
  config.max_sequences = 64;
  SimCore core(config, plugin.scheduler());
  ASSERT_TRUE(core.add(0, {390, 1, 0, 5}));
  std::uint64_t next = 1;
  while (core.now() < 5 || core.is_live(0)) {
    ASSERT_LT(core.now(), 120u) << "the prompt is still not complete";
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(core.add(next++, {4, 30, 0, core.now() + 1}));
    core.step();
    ASSERT_THAT(core.faults(), IsEmpty());
  }
}

TEST(ContinuousScheduler, NeedsFewerStepsThanFixedBatches) {
  std::uint64_t steps[2];
  const char* const plugins[] = {"scheduler_static", "scheduler_continuous"};
  for (int i = 0; i < 2; ++i) {
    const PluginUnderTest plugin(plugins[i], {});
    SimCore core({}, plugin.scheduler());
    for (std::uint64_t id = 0; id < 64; ++id)
      ASSERT_TRUE(core.add(id, {8, static_cast<std::int64_t>(id % 8 == 0 ? 160 : 20)}));
    ASSERT_TRUE(core.run(kLimit));
    steps[i] = core.now();
  }
  // Eight batches as long as their longest member, against slots that refill: 64 requests of 37.5 outputs in 8 slots.
  EXPECT_EQ(steps[0], 8u * 160);
  EXPECT_LT(steps[1], 480u);
}

}  // namespace
}  // namespace facet::test
