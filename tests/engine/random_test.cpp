// Random arrivals, lengths, priorities and cancellations in tight pools: whatever comes, every request has one result,
// says what it says alone, and leaves nothing behind.
#include <random>
#include <set>

#include "world.h"

namespace facet::test {
namespace {

using Random = std::mt19937_64;

std::int64_t between(Random& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

WorldOptions random_options(Random& random) {
  constexpr const char* kSliding[] = {"static", "ring", "paged"};
  WorldOptions options;
  options.sliding = kSliding[random() % 3];
  options.global = random() % 4 == 0 ? "static" : "paged";
  options.scheduler = random() % 2 == 0 ? "static" : "continuous";
  options.window = between(random, 1, 20);
  options.max_sequences = between(random, 1, 6);
  options.max_context = between(random, 24, 80);
  options.max_step_tokens = between(random, 1, 40);
  options.max_chunk = between(random, 1, 40);
  options.run_ahead = random() % 2 == 0;
  if (random() % 2 == 0) options.scheduler_options["order"] = std::string("length");
  for (auto* values : {&options.sliding_options, &options.global_options}) {
    if ((values == &options.sliding_options ? options.sliding : options.global) != "paged") continue;
    const std::int64_t block = between(random, 1, 9);
    (*values)["block_tokens"] = block;
    (*values)["prefix_reuse"] = random() % 3 != 0;
    // From barely one long sequence to a few.
    if (values == &options.global_options)
      (*values)["pool_tokens"] = between(random, options.max_context, 2 * options.max_context) / block * block + block;
  }
  return options;
}

Request random_request(Random& random, const WorldOptions& options, const Ids& common) {
  Request request;
  const std::int64_t rows = between(random, 1, options.max_context);
  const std::int64_t prompt = between(random, 1, rows);
  request.max_tokens = rows - prompt + 1;
  request.prompt = some_ids(prompt, random() % 5);
  // Half of them begin alike.
  if (random() % 2 == 0) {
    for (std::size_t i = 0; i < request.prompt.size() && i < common.size(); ++i) request.prompt[i] = common[i];
  }
  request.priority = static_cast<std::int32_t>(between(random, -2, 2));
  request.arrival_us = between(random, 0, 60);
  request.salt = random() % 2;
  return request;
}

void play(std::uint64_t seed) {
  Random random(seed);
  const WorldOptions options = random_options(random);
  SCOPED_TRACE(
      fmt::format("seed {}: sliding {} window {}, global {}, scheduler {}, {} sequences of {}, step {}, chunk {}", seed,
                  options.sliding, options.window, options.global, options.scheduler, options.max_sequences,
                  options.max_context, options.max_step_tokens, options.max_chunk));
  World world(options);
  world.model->last_sequence_first = random() % 2 == 0;
  std::int64_t tick = 0;
  world.engine->now_us = [&tick] { return tick; };
  const Ids common = some_ids(between(random, 1, 30), seed);
  std::map<std::uint64_t, std::int64_t> asked;
  std::set<std::uint64_t> dropped;
  std::map<std::uint64_t, RequestResult> results;
  const std::int64_t count = between(random, 5, 40);
  for (std::int64_t steps = 0; static_cast<std::int64_t>(asked.size()) < count || !world.engine->idle(); ++steps) {
    ASSERT_LT(steps, 100'000) << "stuck with " << results.size() << " of " << asked.size() << " results";
    if (static_cast<std::int64_t>(asked.size()) < count && random() % 3 == 0) {
      Request request = random_request(random, options, common);
      const std::int64_t most = request.max_tokens;
      request.arrival_us += tick;
      asked[world.engine->submit(std::move(request))] = most;
    }
    if (!asked.empty() && random() % 20 == 0) {
      const std::uint64_t id = static_cast<std::uint64_t>(between(random, 1, static_cast<std::int64_t>(asked.size())));
      world.engine->cancel(id);
      if (results.count(id) == 0) dropped.insert(id);
    }
    for (RequestResult& result : world.step()) {
      ASSERT_EQ(results.count(result.id), 0u) << "request " << result.id << " has two results";
      results[result.id] = std::move(result);
    }
    tick += between(random, 0, 3);
  }
  ASSERT_EQ(results.size(), asked.size());
  for (const auto& [id, result] : results) {
    EXPECT_TRUE(is_undisturbed(result, options.window));
    EXPECT_LE(result.cached_tokens, static_cast<std::int64_t>(result.prompt.size()) - 1);
    EXPECT_EQ(result.finish_reason, dropped.count(id) > 0 ? FinishReason::cancelled : FinishReason::length);
    if (dropped.count(id) == 0) {
      EXPECT_EQ(static_cast<std::int64_t>(result.ids.size()), asked.at(id));
    }
  }
  EXPECT_TRUE(world.nothing_held());
}

TEST(Random, EveryRequestHasOneResultAndLeavesNothing) {
  for (std::uint64_t seed = 1; seed <= 150 && !testing::Test::HasFatalFailure(); ++seed) play(seed);
}

}  // namespace
}  // namespace facet::test
