// Random traffic against the real plugins: everything ends, nothing leaks, nothing starves, no step is wasted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <random>

#include "plugin_under_test.h"
#include "sim_core.h"

namespace facet::test {
namespace {

struct Variant {
  const char* library;
  OptionText options;
  const char* name;
  double most_fed = 1.15;  // tokens computed per token needed, recomputation included
};

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

std::vector<Variant> variants() {
  using namespace std::string_literals;
  const auto integer = [](std::int64_t value) { return value; };
  return {
      {"scheduler_static", {}, "static"},
      {"scheduler_static", {{"order", "length"s}, {"batch_size", integer(3)}}, "static_length_3"},
      {"scheduler_static", {{"order", "length"s}, {"max_skipped_batches", integer(0)}}, "static_no_skip"},
      {"scheduler_continuous", {}, "continuous"},
      {"scheduler_continuous", {{"order", "length"s}, {"ageing_steps", integer(7)}}, "continuous_length"},
      {"scheduler_continuous", {{"prefill_tokens", integer(5)}, {"newcomer_share", 1.0}}, "continuous_small_prefill"},
      {"scheduler_continuous", {{"max_prefill_sequences", integer(1)}, {"ageing_steps", integer(1)}}, "continuous_one"},
      {"scheduler_continuous", {{"newcomer_share", 0.0}}, "continuous_no_share"},
      {"scheduler_shortest_first", {}, "shortest_first", 2.0},
  };
}

class Traffic : public testing::TestWithParam<Variant> {};

struct Load {
  SimConfig config;
  std::vector<SimRequest> requests;
  std::map<std::uint64_t, std::uint64_t> cancels;  // id -> step
};

// pool_factor: size of the cache in units of the largest request.
Load random_load(std::mt19937_64& random, double pool_factor) {
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  Load load;
  const std::int64_t blocks[] = {1, 4, 16};
  load.config.max_step_tokens = between(1, 96);
  load.config.max_sequences = between(1, 12);
  load.config.max_chunk = between(1, 64);
  load.config.block = blocks[between(0, 2)];
  load.config.prefix_hit = between(0, 3) == 0 ? between(1, 40) : 0;
  const std::int64_t count = between(1, 40);
  std::int64_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    SimRequest request;
    request.prompt = between(0, 4) == 0 ? between(100, 400) : between(1, 40);
    request.max_new = between(0, 4) == 0 ? between(50, 200) : between(1, 20);
    request.priority = static_cast<std::int32_t>(between(-2, 2));
    request.arrival = static_cast<std::uint64_t>(between(0, 200));
    largest = std::max(largest, request.prompt + request.max_new - 1);
    if (between(0, 5) == 0)
      load.cancels[static_cast<std::uint64_t>(i)] = request.arrival + static_cast<std::uint64_t>(between(0, 60));
    load.requests.push_back(request);
  }
  const std::int64_t needed = (largest + load.config.block - 1) / load.config.block;
  load.config.pool_blocks = static_cast<std::int64_t>(static_cast<double>(needed) * pool_factor) + between(0, 3);
  return load;
}

TEST_P(Traffic, EverythingEndsAndNothingLeaks) {
  std::int64_t fed = 0;
  std::int64_t needed = 0;
  std::int64_t preemptions = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const double factors[] = {1.0, 1.3, 2.5, 20.0};
    const Load load = random_load(random, factors[seed % 4]);
    const PluginUnderTest plugin(GetParam().library, GetParam().options);
    SimCore core(load.config, plugin.scheduler());
    std::int64_t work = 0;
    for (std::size_t i = 0; i < load.requests.size(); ++i) {
      ASSERT_TRUE(core.add(i, load.requests[i]));
      work += load.requests[i].prompt + load.requests[i].max_new;
    }
    // One token a step would be done after 200 + work steps; recomputation may at most triple that.
    const auto limit = static_cast<std::uint64_t>(200 + 3 * work);
    while (!core.live().empty() && core.faults().empty() && core.now() < limit) {
      for (const auto& [id, step] : load.cancels)
        if (step == core.now()) core.cancel(id);
      core.step();
    }
    ASSERT_THAT(core.faults(), testing::IsEmpty());
    ASSERT_THAT(core.live(), testing::IsEmpty()) << "not finished after " << limit << " steps";
    ASSERT_EQ(core.used_blocks(), 0);
    for (std::size_t i = 0; i < load.requests.size(); ++i) {
      const SimSequence& done = core.of(i);
      if (done.finish_step == 0) {
        ASSERT_TRUE(load.cancels.contains(i));
        continue;
      }
      ASSERT_EQ(done.generated, load.requests[i].max_new);
      fed += done.fed;
      needed += done.rows_at_end();
    }
    preemptions += core.preemptions();
  }
  // Tight memory was really met, and recomputation stays a small part of the work.
  EXPECT_GT(preemptions, 100);
  EXPECT_LT(static_cast<double>(fed), static_cast<double>(needed) * GetParam().most_fed);
}

// A stream of newcomers that never ends, each preferred to the one that waits.
TEST_P(Traffic, NobodyStarvesBehindNewcomers) {
  for (const bool long_prompt : {false, true}) {
    SCOPED_TRACE(long_prompt ? "long prompt" : "low priority");
    const PluginUnderTest plugin(GetParam().library, GetParam().options);
    SimConfig config;
    config.max_sequences = 4;
    config.pool_blocks = 40;
    SimCore core(config, plugin.scheduler());
    const std::uint64_t patient = 0;
    ASSERT_TRUE(core.add(patient, {long_prompt ? 500 : 20, 40, long_prompt ? 0 : -1, 10}));
    std::uint64_t next = 1;
    while (core.is_live(patient) && core.now() < 4000 && core.faults().empty()) {
      // About twice what the slots can serve.
      ASSERT_TRUE(core.add(next++, {10, 10, 0, core.now() + 1}));
      core.step();
    }
    EXPECT_THAT(core.faults(), testing::IsEmpty());
    EXPECT_FALSE(core.is_live(patient)) << "still waiting after " << core.now() << " steps";
  }
}

TEST_P(Traffic, SameTrafficGivesTheSameSchedule) {
  std::mt19937_64 random(7);
  const Load load = random_load(random, 1.3);
  std::vector<std::map<std::uint64_t, std::int64_t>> schedules[2];
  for (auto& schedule : schedules) {
    const PluginUnderTest plugin(GetParam().library, GetParam().options);
    SimCore core(load.config, plugin.scheduler());
    for (std::size_t i = 0; i < load.requests.size(); ++i) ASSERT_TRUE(core.add(i, load.requests[i]));
    ASSERT_TRUE(core.run(1 << 20));
    for (std::size_t i = 0; i < load.requests.size(); ++i) schedule.push_back(core.of(i).worked);
  }
  EXPECT_EQ(schedules[0], schedules[1]);
}

INSTANTIATE_TEST_SUITE_P(Schedulers, Traffic, testing::ValuesIn(variants()),
                         [](const auto& variant) { return std::string(variant.param.name); });

}  // namespace
}  // namespace facet::test
