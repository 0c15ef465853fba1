// Admission, fairness and cancellation through the whole engine: field reports 14, 16 and 17.
#include <gmock/gmock.h>

#include <thread>

#include "world.h"

namespace facet::test {
namespace {

class BothSchedulers : public testing::TestWithParam<const char*> {};

// Report 14: pool of 64 rows in pages of 16. What is accepted runs in full; what cannot run is refused at once.
TEST_P(BothSchedulers, ExactFitRunsAndOneRowMoreIsRefused) {
  WorldOptions options;
  options.scheduler = GetParam();
  options.global = "paged";
  options.global_options = {{"block_tokens", std::int64_t{16}}, {"pool_tokens", std::int64_t{64}}};
  options.max_context = 128;
  for (const std::int64_t prompt : {48, 49}) {
    World world(options);
    const std::uint64_t big = world.ask(some_ids(prompt, 1), 16), small = world.ask(some_ids(4, 2), 3);
    const auto results = world.finish(200);
    EXPECT_EQ(results.at(big).ids.size(), 16u) << "prompt of " << prompt;
    EXPECT_EQ(results.at(big).finish_reason, FinishReason::length);
    EXPECT_TRUE(is_undisturbed(results.at(big), 8));
    EXPECT_EQ(results.at(small).ids.size(), 3u);
    EXPECT_TRUE(is_undisturbed(results.at(small), 8));
    EXPECT_TRUE(world.nothing_held());
  }
  World world(options);
  EXPECT_THROW(world.ask(some_ids(50, 1), 16), Error);
  EXPECT_THROW(world.ask(some_ids(65, 1), 1), Error);
  const std::uint64_t small = world.ask(some_ids(4, 2), 3);
  EXPECT_EQ(world.finish(10).at(small).ids.size(), 3u);
}

// Report 17: 240 requests whose clients leave: while queued, during chunked prefill, after the first token.
TEST_P(BothSchedulers, CancelledRequestsLeaveNothingBehind) {
  WorldOptions options;
  options.scheduler = GetParam();
  options.sliding = "ring";
  options.global = "paged";
  options.max_sequences = 6;
  options.max_step_tokens = 16;
  options.max_chunk = 4;
  World world(options);
  constexpr std::int32_t kCount = 240;
  std::map<std::uint64_t, std::int32_t> index_of;
  std::map<std::int32_t, std::int64_t> calls_at_cancel;
  std::vector<std::uint64_t> ids;
  // Requests 1, 4, 7, ... leave while queued, 2, 5, ... in the second chunk, 3, 6, ... after their first token.
  for (std::int32_t i = 1; i <= kCount; ++i) {
    Ids prompt = some_ids(24, static_cast<std::uint64_t>(i));
    prompt.front() = i;
    ids.push_back(world.ask(prompt, 20));
    index_of[ids.back()] = i;
  }
  const auto drop = [&](std::uint64_t id) {
    calls_at_cancel.emplace(index_of.at(id), world.model->work[index_of.at(id)].calls);
    world.engine->cancel(id);
    world.engine->cancel(id);
  };
  for (std::size_t i = 0; i < 60; i += 3) drop(ids[i]);
  world.engine->on_token = [&](std::uint64_t id, std::int32_t) {
    if (index_of.at(id) % 3 == 0) drop(id);
  };
  std::map<std::uint64_t, RequestResult> results;
  for (int steps = 0; !world.engine->idle(); ++steps) {
    ASSERT_LT(steps, 10'000);
    for (RequestResult& result : world.step()) {
      EXPECT_EQ(results.count(result.id), 0u);
      world.engine->cancel(result.id);
      results[result.id] = std::move(result);
    }
    for (std::size_t i = 60; steps == 0 && i < ids.size(); i += 3) drop(ids[i]);
    for (std::size_t i = 1; i < ids.size(); i += 3)
      if (world.model->work[index_of.at(ids[i])].calls == 2) drop(ids[i]);
  }
  world.engine->cancel(1'000'000);
  EXPECT_FALSE(world.engine->step());
  EXPECT_EQ(results.size(), ids.size());
  for (const auto& [id, result] : results) {
    const std::int32_t index = index_of.at(id);
    EXPECT_EQ(result.finish_reason, FinishReason::cancelled) << index;
    EXPECT_EQ(world.model->work[index].calls, calls_at_cancel.at(index)) << index << " went on after its cancellation";
    if (index % 3 == 1) {
      EXPECT_EQ(world.model->work[index].calls, 0) << index;
    }
    if (index % 3 == 2) {
      EXPECT_TRUE(result.ids.empty()) << index;
    }
    if (index % 3 == 0) {
      EXPECT_EQ(result.ids.size(), 1u) << index;
    }
  }
  EXPECT_TRUE(world.nothing_held());
  // Every slot is usable again.
  world.engine->on_token = {};
  for (std::uint64_t i = 0; i < 6; ++i) world.ask(some_ids(3, 1000 + i), 2);
  for (const auto& [id, result] : world.finish(100)) {
    EXPECT_TRUE(is_undisturbed(result, 8)) << id;
    EXPECT_EQ(result.ids.size(), 2u);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, BothSchedulers, testing::Values("static", "continuous"));

// Report 16: one step is one tick. A prompt of 100 chunks neither stops a stream nor keeps a newcomer out.
class Hog : public testing::Test {
 protected:
  struct Ticks {
    std::int64_t hog_first = 0, newcomer_first = 0;
    std::vector<std::int64_t> stream;
  };

  static Ticks play(bool with_newcomer) {
    WorldOptions options;
    options.max_context = 6500;
    World world(options);
    std::int64_t tick = 0;
    world.engine->now_us = [&tick] { return tick; };
    const std::uint64_t stream = world.ask(some_ids(4, 1), 150);
    world.step();
    const auto at = [&](std::int64_t prompt, std::int64_t arrival) {
      Request request;
      request.prompt = some_ids(prompt, static_cast<std::uint64_t>(prompt));
      request.max_tokens = 1;
      request.arrival_us = arrival;
      return world.engine->submit(request);
    };
    const std::uint64_t hog = at(6400, 1);
    const std::uint64_t newcomer = with_newcomer ? at(10, 5) : 0;
    const auto step = [&] {
      ++tick;
      return world.step();
    };
    Ticks ticks;
    while (!world.engine->idle() && tick < 1000) {
      for (const RequestResult& result : step()) {
        EXPECT_TRUE(result.id == hog || is_undisturbed(result, 8));
        if (result.id == hog) ticks.hog_first = result.token_us.at(0);
        if (result.id == newcomer) ticks.newcomer_first = result.token_us.at(0);
        if (result.id == stream) ticks.stream = result.token_us;
      }
    }
    return ticks;
  }
};

TEST_F(Hog, NeitherStopsAStreamNorKeepsANewcomerOut) {
  const Ticks alone = play(false), shared = play(true);
  const auto in_first_hundred =
      std::count_if(shared.stream.begin(), shared.stream.end(), [](std::int64_t t) { return t >= 1 && t <= 100; });
  EXPECT_GE(in_first_hundred, 90);
  EXPECT_GE(shared.newcomer_first, 5);
  EXPECT_LE(shared.newcomer_first, 10);
  EXPECT_GT(alone.hog_first, 100);
  // newcomer_share is 0.25.
  EXPECT_LE(shared.hog_first - 1, (alone.hog_first - 1) * 5 / 4 + 1);
}

TEST(Arrival, NothingIsSeenBeforeItsTime) {
  World world({});
  std::int64_t now = 0;
  world.engine->now_us = [&now] { return now; };
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 2;
  request.arrival_us = 50;
  const std::uint64_t late = world.engine->submit(request);
  EXPECT_FALSE(world.engine->step());
  EXPECT_FALSE(world.engine->idle());
  EXPECT_EQ(world.model->forwards, 0);
  now = 50;
  EXPECT_TRUE(world.engine->step());
  now = 60;
  const RequestResult result = world.finish().at(late);
  EXPECT_EQ(result.token_us, (std::vector<std::int64_t>{50, 60}));
  EXPECT_DOUBLE_EQ(result.ttft_ms(), 0.0);
  EXPECT_THAT(result.inter_token_ms(), testing::ElementsAre(testing::DoubleNear(0.01, 1e-12)));
  // A request of the future can be cancelled too.
  request.arrival_us = 1000;
  const std::uint64_t never = world.engine->submit(request);
  world.engine->cancel(never);
  EXPECT_EQ(world.finish(2).at(never).finish_reason, FinishReason::cancelled);
}

TEST(Cancel, FromAnotherThread) {
  WorldOptions options;
  options.max_context = 4096;
  World world(options);
  const std::uint64_t id = world.ask(some_ids(4, 1), 4000);
  std::thread client([&] { world.engine->cancel(id); });
  world.engine->run();
  client.join();
  world.engine->step();
  const std::vector<RequestResult> results = world.engine->take_finished();
  ASSERT_EQ(results.size(), 1u);
  // Which came first is up to the threads; either way there is one result and nothing is held.
  EXPECT_TRUE(results[0].finish_reason == FinishReason::cancelled || results[0].ids.size() == 4000u);
  EXPECT_TRUE(world.nothing_held());
}

}  // namespace
}  // namespace facet::test
