// Preemption by recomputation through the whole engine: field report 19.
#include <gmock/gmock.h>

#include <set>

#include "world.h"

namespace facet::test {
namespace {

// Schedules everything in order, but takes the rows of the first sequence away whenever it holds one of these numbers
// of computed tokens, once each.
FunctionScheduler::Plan preempting(std::set<std::int64_t> moments, bool resume_at_once) {
  return [moments = std::move(moments), resume_at_once](const abi::SchedulerView& view, const abi::StepBuilder& builder,
                                                        abi::TextSink) mutable {
    std::int64_t granted = 0;
    for (std::uint32_t i = 0; i < view.sequence_count; ++i) {
      const abi::SequenceView& sequence = view.sequences[i];
      if (i == 0 && moments.erase(sequence.computed_tokens) > 0) {
        EXPECT_EQ(builder.preempt(builder.context, sequence.id), abi::ScheduleResult::scheduled);
        if (!resume_at_once) continue;
      }
      builder.schedule(builder.context, sequence.id, view.max_chunk, &granted);
    }
    return abi::Status::ok;
  };
}

Request sampled(double temperature, double penalty) {
  Request request;
  request.prompt = some_ids(10, 3);
  request.max_tokens = 20;
  request.sampling.temperature = temperature;
  request.sampling.seed = 77;
  request.sampling.repetition_penalty = penalty;
  return request;
}

// What the sampler says to the request on its own.
Ids sampled_alone(const Request& request, std::int64_t window) {
  Sampler sampler(request.sampling, 0);
  Ids context = request.prompt, output;
  while (static_cast<std::int64_t>(output.size()) < request.max_tokens) {
    const Sampler::Result next = sampler.sample(stub_logits(context_hash(context, window)), request.prompt, output);
    EXPECT_TRUE(next.ok) << next.error;
    output.push_back(next.id);
    context.push_back(next.id);
  }
  return output;
}

struct Outcome {
  RequestResult result;
  Ids streamed;
  std::vector<std::vector<std::int64_t>> chunks;
};

Outcome play(const WorldOptions& options, FunctionScheduler& scheduler, const Request& request) {
  World world(options, scheduler);
  Outcome outcome;
  const std::uint64_t id = world.engine->submit(request);
  // A neighbour, so that a step has work while the first waits.
  world.ask(some_ids(5, 4), 30);
  world.engine->on_token = [&](std::uint64_t from, std::int32_t token) {
    if (from == id) outcome.streamed.push_back(token);
  };
  auto results = world.finish();
  for (const auto& [other, result] : results)
    if (other != id) {
      EXPECT_TRUE(is_undisturbed(result, 8));
    }
  EXPECT_TRUE(world.nothing_held());
  outcome.result = std::move(results.at(id));
  outcome.chunks = world.model->chunks;
  return outcome;
}

TEST(Preemption, TokensAreThoseOfTheUndisturbedRun) {
  for (const bool paged : {false, true}) {
    for (const auto& [temperature, penalty] : {std::pair{0.0, 1.0}, {0.0, 1.3}, {0.9, 1.0}, {0.9, 1.3}}) {
      WorldOptions options;
      options.sliding = paged ? "paged" : "ring";
      options.global = paged ? "paged" : "static";
      const Request request = sampled(temperature, penalty);
      FunctionScheduler calm(preempting({}, true));
      const Outcome right = play(options, calm, request);
      ASSERT_EQ(right.result.ids, sampled_alone(request, options.window));
      EXPECT_EQ(right.result.preemptions, 0);
      // 16 rows: 10 of the prompt and 6 generated ones, the seventh is known and has no row yet.
      for (const std::set<std::int64_t>& moments : {std::set<std::int64_t>{16}, {16, 22}, {10}}) {
        for (const bool at_once : {false, true}) {
          FunctionScheduler scheduler(preempting(moments, at_once));
          const Outcome outcome = play(options, scheduler, request);
          SCOPED_TRACE(fmt::format("paged {}, temperature {}, penalty {}, {} preemptions, resumed {}", paged,
                                   temperature, penalty, moments.size(), at_once ? "at once" : "a step later"));
          EXPECT_EQ(outcome.result.ids, right.result.ids);
          EXPECT_EQ(outcome.streamed, right.result.ids);
          EXPECT_EQ(outcome.result.prompt.size(), 10u);
          EXPECT_EQ(outcome.result.token_us.size(), 20u);
          EXPECT_EQ(outcome.result.preemptions, static_cast<std::int64_t>(moments.size()));
          if (!paged && moments.count(16) > 0) {
            EXPECT_TRUE(std::any_of(outcome.chunks.begin(), outcome.chunks.end(), [](const auto& rows) {
              return std::count(rows.begin(), rows.end(), 17) > 0;
            })) << "the prompt and the 7 generated tokens were not computed again";
          }
        }
      }
    }
  }
}

TEST(Preemption, InTheMiddleOfAPrompt) {
  WorldOptions options;
  options.sliding = "ring";
  options.max_chunk = 4;
  FunctionScheduler calm(preempting({}, true)), disturbed(preempting({4, 8, 13}, false));
  const Request request = sampled(0, 1);
  const Outcome right = play(options, calm, request), outcome = play(options, disturbed, request);
  EXPECT_EQ(outcome.result.ids, right.result.ids);
  EXPECT_EQ(outcome.result.preemptions, 3);
  EXPECT_TRUE(is_undisturbed(outcome.result, 8));
}

// Likelihoods that were known before the preemption are not listed twice.
TEST(Preemption, ScoresAreListedOnce) {
  Request request;
  request.prompt = some_ids(20, 5);
  request.max_tokens = 10;
  request.forced = some_ids(10, 6);
  request.score = true;
  WorldOptions options;
  options.max_chunk = 8;
  FunctionScheduler calm(preempting({}, true)), disturbed(preempting({8, 24}, false));
  const Outcome right = play(options, calm, request), outcome = play(options, disturbed, request);
  EXPECT_EQ(right.result.nll.size(), 29u);
  EXPECT_EQ(outcome.result.nll, right.result.nll);
  EXPECT_EQ(outcome.result.preemptions, 2);
}

// Real schedulers in a pool too small for both: they preempt, and nobody says anything else for it.
TEST(Preemption, ByRealSchedulersInATightPool) {
  for (const char* name : {"static", "continuous"}) {
    WorldOptions options;
    options.scheduler = name;
    options.global = "paged";
    options.global_options = {{"block_tokens", std::int64_t{4}}, {"pool_tokens", std::int64_t{48}}};
    World world(options);
    for (std::uint64_t i = 0; i < 4; ++i) world.ask(some_ids(8, 50 + i), 30);
    const auto results = world.finish(2000);
    std::int64_t preemptions = 0;
    for (const auto& [id, result] : results) {
      EXPECT_TRUE(is_undisturbed(result, 8)) << name;
      EXPECT_EQ(result.ids.size(), 30u);
      preemptions += result.preemptions;
    }
    EXPECT_EQ(world.engine->metrics().preemptions, preemptions);
    EXPECT_GT(preemptions, 0) << name << ": the pool was not tight enough to test anything";
    EXPECT_TRUE(world.nothing_held());
  }
}

}  // namespace
}  // namespace facet::test
