// Paged pools and reuse of prefixes through the whole engine: field reports 7, 8, 10, 11 and 13.
#include "world.h"

namespace facet::test {
namespace {

WorldOptions paged_options(std::int64_t block, std::int64_t pool_tokens) {
  WorldOptions options;
  options.sliding = options.global = "paged";
  options.window = 8;
  options.max_context = 128;
  options.max_step_tokens = 128;
  options.max_chunk = 128;
  // Only the pool of the global group is tight.
  options.sliding_options = {{"block_tokens", block}};
  options.global_options = {{"block_tokens", block}};
  if (pool_tokens > 0) options.global_options["pool_tokens"] = pool_tokens;
  return options;
}

Ids joined(Ids left, const Ids& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

abi::KvUsage global_usage(const World& world) {
  return world.model->kv().usage()[1];
}

// Report 7: what a request has matched is not evicted by its own allocation. Blocks of 4; 8 tokens, then their reuse.
TEST(Prefix, ExactFitWithReusedBlocks) {
  WorldOptions options = paged_options(4, 16);
  options.max_context = 16;
  World world(options);
  const Ids first = some_ids(8, 1);
  world.ask(first, 1);
  world.finish();
  const std::uint64_t id = world.ask(joined(first, some_ids(5, 2)), 1);
  const RequestResult result = world.finish().at(id);
  EXPECT_EQ(result.cached_tokens, 8);
  EXPECT_TRUE(is_undisturbed(result, 8));
}

TEST(Prefix, WaitsUntilBlocksOfOthersAreFree) {
  WorldOptions options = paged_options(4, 24);
  options.max_context = 24;
  World world(options);
  const Ids first = some_ids(8, 1);
  world.ask(first, 1);
  world.finish();
  // Holds two blocks for four steps: rows 5 to 8 lie in the second.
  const std::uint64_t holder = world.ask(some_ids(5, 3), 4);
  world.step();
  const std::uint64_t waiting = world.ask(joined(first, some_ids(9, 4)), 1);
  const std::int64_t total = global_usage(world).blocks_total;
  EXPECT_EQ(total, 6);
  std::map<std::uint64_t, RequestResult> results;
  while (!world.engine->idle()) {
    for (RequestResult& result : world.step()) {
      if (result.id == waiting) {
        EXPECT_EQ(results.count(holder), 1u) << "admitted before there was room";
      }
      results[result.id] = std::move(result);
    }
  }
  EXPECT_TRUE(is_undisturbed(results.at(holder), 8));
  EXPECT_TRUE(is_undisturbed(results.at(waiting), 8));
  EXPECT_TRUE(world.nothing_held());
}

// Five blocks, two of them held by a live donor: three more are needed and three are free.
TEST(Prefix, BlocksHeldByTheDonorAreNotCountedTwice) {
  FunctionScheduler newest_first([](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    std::int64_t granted = 0;
    const abi::SequenceView& newest = view.sequences[view.sequence_count - 1];
    const std::int64_t tokens = view.step == 1 ? 8 : view.max_chunk;
    EXPECT_EQ(builder.schedule(builder.context, newest.id, tokens, &granted), abi::ScheduleResult::scheduled);
    return abi::Status::ok;
  });
  WorldOptions options = paged_options(4, 20);
  options.max_context = 20;
  World world(options, newest_first);
  const Ids first = some_ids(8, 1);
  const std::uint64_t donor = world.ask(joined(first, some_ids(4, 2)), 1);
  world.step();
  EXPECT_EQ(global_usage(world).blocks_free, 3);
  const std::uint64_t other = world.ask(joined(first, some_ids(9, 3)), 1);
  const auto results = world.finish();
  EXPECT_EQ(results.at(other).cached_tokens, 8);
  EXPECT_TRUE(is_undisturbed(results.at(donor), 8));
  EXPECT_TRUE(is_undisturbed(results.at(other), 8));
  EXPECT_TRUE(world.nothing_held());
}

// Report 8: requests that share a prefix and start in the same step never read rows that nobody has written yet.
TEST(Prefix, SamePrefixInTheSameStep) {
  for (int round = 0; round < 20; ++round) {
    WorldOptions options = paged_options(16, 0);
    options.max_step_tokens = 512;
    World world(options);
    world.model->last_sequence_first = round % 2 == 1;
    const auto seed = static_cast<std::uint64_t>(round * 10);
    const Ids prefix = some_ids(64, seed);
    std::vector<std::uint64_t> ids;
    for (std::uint64_t i = 1; i <= 4; ++i) ids.push_back(world.ask(joined(prefix, some_ids(5, seed + i)), 10));
    const auto results = world.finish();
    EXPECT_EQ(world.model->chunks.front().size(), 4u) << "not all were admitted in one step";
    for (const std::uint64_t id : ids) EXPECT_TRUE(is_undisturbed(results.at(id), 8)) << "round " << round;
  }
}

// Report 10: the half-filled last block of a prefix has one writer.
TEST(Prefix, HalfFilledBlockIsNotShared) {
  World world(paged_options(16, 0));
  const Ids prompt = some_ids(40, 5);
  world.ask(prompt, 1);
  world.finish();
  std::vector<std::uint64_t> ids;
  for (const std::int32_t different : {101, 202}) {
    Request request;
    request.prompt = prompt;
    request.max_tokens = 30;
    request.forced = {different};
    ids.push_back(world.engine->submit(request));
  }
  std::map<std::uint64_t, RequestResult> results;
  world.step();
  EXPECT_EQ(global_usage(world).blocks_total - global_usage(world).blocks_free - global_usage(world).blocks_cached, 4);
  while (!world.engine->idle())
    for (RequestResult& result : world.step()) results[result.id] = std::move(result);
  for (const std::uint64_t id : ids) {
    const RequestResult& result = results.at(id);
    EXPECT_EQ(result.cached_tokens, 32);
    Ids continued = prompt;
    continued.push_back(result.ids.front());
    EXPECT_EQ(Ids(result.ids.begin() + 1, result.ids.end()), greedy_continuation(continued, 29, 8));
  }
  EXPECT_TRUE(world.nothing_held());
}

// Report 11: equal tokens under another salt are another prefix.
TEST(Prefix, AnotherSaltSharesNothing) {
  World world(paged_options(16, 0));
  const Ids prompt = some_ids(40, 6);
  const auto cached = [&](std::uint64_t salt) {
    Request request;
    request.prompt = prompt;
    request.max_tokens = 4;
    request.salt = salt;
    const std::uint64_t id = world.engine->submit(request);
    const RequestResult result = world.finish().at(id);
    EXPECT_TRUE(is_undisturbed(result, 8));
    return result.cached_tokens;
  };
  EXPECT_EQ(cached(1), 0);
  EXPECT_EQ(cached(1), 32);
  EXPECT_EQ(cached(2), 0);
  EXPECT_EQ(cached(0), 0);
  EXPECT_EQ(cached(2), 32);
}

// Report 13: the identical prompt again and again; one token is always computed, and rows are as many as tokens.
TEST(Prefix, IdenticalPromptThreeTimes) {
  World world(paged_options(16, 0));
  for (const std::int64_t length : {1, 15, 16, 17, 31, 32, 33}) {
    const Ids prompt = some_ids(length, static_cast<std::uint64_t>(100 + length));
    Ids outputs[3];
    for (Ids& output : outputs) {
      const std::uint64_t id = world.ask(prompt, 5);
      world.engine->step();
      // The prompt's rows, and not one of them twice.
      const abi::KvUsage usage = global_usage(world);
      const std::uint64_t row_bytes = 2 * 2 * sizeof(float);
      EXPECT_EQ(usage.bytes_used, static_cast<std::uint64_t>(length) * row_bytes) << "prompt of " << length;
      const RequestResult result = world.finish().at(id);
      EXPECT_LE(result.cached_tokens, length - 1);
      EXPECT_EQ(result.prompt.size(), static_cast<std::size_t>(length));
      EXPECT_TRUE(is_undisturbed(result, 8));
      output = result.ids;
      if (&output != &outputs[0]) {
        EXPECT_EQ(result.cached_tokens, (length - 1) / 16 * 16) << "prompt of " << length;
      }
    }
    EXPECT_EQ(outputs[0], outputs[1]);
    EXPECT_EQ(outputs[0], outputs[2]);
  }
  EXPECT_TRUE(world.nothing_held());
}

// A request that wants the likelihood of its prompt needs every row computed.
TEST(Prefix, ScoringReusesNothing) {
  World world(paged_options(16, 0));
  for (int round = 0; round < 2; ++round) {
    Request request;
    request.prompt = some_ids(50, 7);
    request.max_tokens = 0;
    request.score = true;
    const std::uint64_t id = world.engine->submit(request);
    const RequestResult result = world.finish().at(id);
    EXPECT_EQ(result.cached_tokens, 0);
    EXPECT_EQ(result.nll.size(), 49u);
  }
}

}  // namespace
}  // namespace facet::test
