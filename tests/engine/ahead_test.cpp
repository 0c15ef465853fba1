// Steps that run ahead of the tokens they continue from: the same results as one step after the other.
#include <algorithm>

#include "world.h"

namespace facet::test {
namespace {

WorldOptions ahead_options() {
  WorldOptions options;
  options.run_ahead = true;
  return options;
}

// Counts the forwards that began with tokens nobody had read.
void count_ahead(World& world, std::int64_t& ahead) {
  world.model->before_forward = [&ahead](const StepInput& input) {
    if (std::any_of(input.ids, input.ids + input.batch.token_count, [](std::int32_t id) { return id < 0; })) ++ahead;
  };
}

TEST(RunAhead, GivesTheTokensOfOneStepAfterTheOther) {
  World world(ahead_options());
  std::int64_t ahead = 0;
  count_ahead(world, ahead);
  const std::uint64_t first = world.ask(some_ids(9, 1), 20), second = world.ask(some_ids(4, 2), 20);
  const auto results = world.finish();
  EXPECT_EQ(results.at(first).ids, greedy_continuation(some_ids(9, 1), 20, world.options.window));
  EXPECT_EQ(results.at(second).ids, greedy_continuation(some_ids(4, 2), 20, world.options.window));
  // 19 tokens come from decoding steps; the first of them has nothing to run ahead of.
  EXPECT_EQ(ahead, 18);
  EXPECT_EQ(world.model->forwards, 20);
  EXPECT_TRUE(world.nothing_held());
}

TEST(RunAhead, TokensComeInOrderAndOneStepLate) {
  World world(ahead_options());
  Ids seen;
  world.engine->on_token = [&](std::uint64_t, std::int32_t token) { seen.push_back(token); };
  world.ask(some_ids(5, 3), 4);
  const Ids right = greedy_continuation(some_ids(5, 3), 4, world.options.window);
  for (const std::size_t count : {1, 1, 2, 3, 4}) {
    world.step();
    EXPECT_EQ(seen, Ids(right.begin(), right.begin() + static_cast<std::ptrdiff_t>(count)));
  }
  EXPECT_TRUE(world.engine->idle());
}

TEST(RunAhead, AStopIdDropsTheRowThatWasComputedInVain) {
  World world(ahead_options());
  const Ids right = greedy_continuation(some_ids(6, 4), 12, world.options.window);
  Request request;
  request.prompt = some_ids(6, 4);
  request.max_tokens = 12;
  request.stop_ids = {right[5]};
  const std::uint64_t stopped = world.engine->submit(std::move(request));
  const std::uint64_t other = world.ask(some_ids(3, 5), 12);
  const auto results = world.finish();
  const auto end = std::find(right.begin(), right.end(), right[5]) + 1;
  EXPECT_EQ(results.at(stopped).ids, Ids(right.begin(), end));
  EXPECT_EQ(results.at(stopped).finish_reason, FinishReason::stop);
  EXPECT_EQ(results.at(other).ids, greedy_continuation(some_ids(3, 5), 12, world.options.window));
  EXPECT_TRUE(world.nothing_held());
}

TEST(RunAhead, CancellingDuringAStepKeepsTheOthers) {
  World world(ahead_options());
  const std::uint64_t first = world.ask(some_ids(7, 6), 30), second = world.ask(some_ids(7, 7), 10);
  for (int i = 0; i < 4; ++i) world.step();
  world.engine->cancel(first);
  const auto results = world.finish();
  EXPECT_EQ(results.at(first).finish_reason, FinishReason::cancelled);
  EXPECT_TRUE(is_undisturbed(results.at(first), world.options.window));
  EXPECT_EQ(results.at(second).ids, greedy_continuation(some_ids(7, 7), 10, world.options.window));
  EXPECT_TRUE(world.nothing_held());
}

TEST(RunAhead, AStepThatFailsKeepsTheTokensBeforeIt) {
  World world(ahead_options());
  world.model->before_forward = [&](const StepInput&) {
    if (world.model->forwards == 5) throw Error(ErrorKind::run, "the device fell over");
  };
  const std::uint64_t id = world.ask(some_ids(8, 8), 20);
  const auto results = world.finish();
  // Forward 1 is the prompt; 2 to 4 decode, and the failing one had already been fed the last of their tokens.
  const Ids right = greedy_continuation(some_ids(8, 8), 4, world.options.window);
  EXPECT_EQ(results.at(id).ids, right);
  EXPECT_EQ(results.at(id).finish_reason, FinishReason::error);
  EXPECT_NE(results.at(id).error.find("the device fell over"), std::string::npos) << results.at(id).error;
  EXPECT_TRUE(world.nothing_held());
}

TEST(RunAhead, LogitsWithoutABestTokenEndTheirRequestAlone) {
  World world(ahead_options());
  const std::uint64_t bad = world.ask(some_ids(5, 9), 9), good = world.ask(some_ids(5, 10), 9);
  world.model->after_choice = [&](Ids& ids) {
    if (world.model->forwards == 4) ids.front() = -1;
  };
  const auto results = world.finish();
  EXPECT_EQ(results.at(bad).finish_reason, FinishReason::error);
  EXPECT_NE(results.at(bad).error.find("position 7 hold NaN"), std::string::npos) << results.at(bad).error;
  EXPECT_EQ(results.at(bad).ids, greedy_continuation(some_ids(5, 9), 3, world.options.window));
  EXPECT_EQ(results.at(good).ids, greedy_continuation(some_ids(5, 10), 9, world.options.window));
  EXPECT_TRUE(world.nothing_held());
}

TEST(RunAhead, SampledTokensAreThoseOfOneStepAfterTheOther) {
  std::vector<Ids> said;
  for (const bool run_ahead : {false, true}) {
    WorldOptions options;
    options.run_ahead = run_ahead;
    World world(options);
    std::int64_t ahead = 0;
    count_ahead(world, ahead);
    Request request;
    request.prompt = some_ids(5, 11);
    request.max_tokens = 12;
    request.sampling.temperature = 0.7;
    request.sampling.top_p = 0.9;
    request.sampling.seed = 3;
    world.ask(some_ids(3, 12), 12);
    const std::uint64_t id = world.engine->submit(std::move(request));
    said.push_back(world.finish().at(id).ids);
    EXPECT_EQ(ahead, run_ahead ? 10 : 0);
  }
  EXPECT_EQ(said[0], said[1]);
  EXPECT_NE(said[0], greedy_continuation(some_ids(5, 11), 12, WorldOptions{}.window));
}

TEST(RunAhead, PenalisedRequestsWaitForTheirTokens) {
  World world(ahead_options());
  std::int64_t ahead = 0;
  count_ahead(world, ahead);
  Request request;
  request.prompt = some_ids(5, 13);
  request.max_tokens = 8;
  request.sampling.repetition_penalty = 1.5;
  const std::uint64_t id = world.engine->submit(std::move(request));
  EXPECT_EQ(world.finish().at(id).ids.size(), 8u);
  EXPECT_EQ(ahead, 0);
}

}  // namespace
}  // namespace facet::test
