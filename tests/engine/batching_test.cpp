// Rings and ragged batches through the whole engine: field reports 1, 2, 4, 5 and 20.
#include <gmock/gmock.h>

#include "world.h"

namespace facet::test {
namespace {

using testing::HasSubstr;

WorldOptions ring_options() {
  WorldOptions options;
  options.sliding = "ring";
  options.max_context = 128;
  options.max_step_tokens = 128;
  options.max_chunk = 128;
  return options;
}

// Report 1: a prompt longer than the window in one step.
TEST(Ring, PromptLongerThanTheWindowInOneStep) {
  World world(ring_options());
  const std::uint64_t id = world.ask(some_ids(20, 1), 6);
  const auto results = world.finish();
  EXPECT_EQ(world.model->chunks.front(), std::vector<std::int64_t>{20});
  EXPECT_EQ(results.at(id).ids.size(), 6u);
  EXPECT_TRUE(is_undisturbed(results.at(id), 8));
}

// Report 2: a ring of twice the window and chunks around what it can take: 16 >= 8 + chunk - 1, so 9 at most.
TEST(Ring, ChunksUpToWhatTheRingCanTake) {
  for (const std::int64_t chunk : {1, 4, 8, 9, 10, 16, 17}) {
    WorldOptions options = ring_options();
    options.sliding_options["rows"] = std::int64_t{16};
    options.max_chunk = chunk;
    World world(options);
    const std::uint64_t id = world.ask(some_ids(100, 2), 5);
    const auto results = world.finish();
    EXPECT_TRUE(is_undisturbed(results.at(id), 8)) << "chunk " << chunk;
    for (const auto& rows : world.model->chunks) EXPECT_LE(rows.front(), std::min<std::int64_t>(chunk, 9));
    EXPECT_EQ(world.model->chunks.front().front(), std::min<std::int64_t>(chunk, 9)) << "the ring takes more than used";
  }
}

// Report 4: rows of 3, 21 (wrapped) and exactly 8 tokens decode together; one leaves, a new one joins.
TEST(Ring, WrappedAndUnwrappedRowsDecodeTogether) {
  World world(ring_options());
  const std::uint64_t a = world.ask(some_ids(3, 3), 5);
  const std::uint64_t b = world.ask(some_ids(21, 4), 15);
  const std::uint64_t c = world.ask(some_ids(8, 5), 15);
  std::map<std::uint64_t, RequestResult> results;
  const auto step = [&] {
    for (RequestResult& result : world.step()) results[result.id] = std::move(result);
  };
  while (results.count(a) == 0) step();
  EXPECT_EQ(world.model->chunks.back().size(), 3u);
  const std::uint64_t d = world.ask(some_ids(1, 6), 5);
  while (!world.engine->idle()) step();
  for (const std::uint64_t id : {a, b, c, d}) EXPECT_TRUE(is_undisturbed(results.at(id), 8));
  EXPECT_EQ(results.at(b).ids.size(), 15u);
  EXPECT_TRUE(world.nothing_held());
}

// Report 5: no jump at any total length around the window and its multiples.
TEST(Ring, EveryLengthAroundTheWindow) {
  for (const char* policy : {"ring", "static", "paged"}) {
    WorldOptions options = ring_options();
    options.sliding = policy;
    options.global = std::string(policy) == "paged" ? "paged" : "static";
    World world(options);
    for (std::int64_t length = 1; length <= 40; ++length) {
      const std::uint64_t id = world.ask(some_ids(length, 7), 3);
      const auto results = world.finish();
      EXPECT_TRUE(is_undisturbed(results.at(id), 8)) << policy << ", prompt of " << length;
    }
  }
}

// Report 20: a row with nothing scheduled gets no token, and a prompt in three chunks says nothing before the third.
TEST(Batch, OnlyCompletedSequencesGetATokenAndOneEach) {
  FunctionScheduler prefill_first([](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    std::int64_t granted = 0;
    bool any = false;
    for (std::uint32_t i = 0; i < view.sequence_count; ++i) {
      if (view.sequences[i].pending_tokens > 1 || view.sequences[i].generated_tokens == 0) {
        builder.schedule(builder.context, view.sequences[i].id, view.max_chunk, &granted);
        any = true;
      }
    }
    for (std::uint32_t i = 0; i < view.sequence_count && !any; ++i)
      builder.schedule(builder.context, view.sequences[i].id, 1, &granted);
    return abi::Status::ok;
  });
  WorldOptions options;
  options.max_chunk = 16;
  World world(options, prefill_first);
  const std::uint64_t a = world.ask(some_ids(8, 8), 6);
  const std::uint64_t b = world.ask(some_ids(40, 9), 6);
  std::map<std::uint64_t, std::vector<std::int64_t>> said;  // forward in which each token came
  world.engine->on_token = [&](std::uint64_t id, std::int32_t) { said[id].push_back(world.model->forwards); };
  const auto results = world.finish();
  // A idles in the forwards 2 and 3, in which B's second and third chunk run.
  EXPECT_EQ(said[a], (std::vector<std::int64_t>{1, 4, 5, 6, 7, 8}));
  EXPECT_EQ(said[b], (std::vector<std::int64_t>{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(world.model->chunks[1], std::vector<std::int64_t>{16});
  EXPECT_EQ(world.model->chunks[2], std::vector<std::int64_t>{8});
  EXPECT_TRUE(is_undisturbed(results.at(a), 8));
  EXPECT_TRUE(is_undisturbed(results.at(b), 8));
}

TEST(Batch, StopIdEndsOneRequestAndNotItsNeighbour) {
  World world({});
  const Ids prompt = some_ids(5, 10);
  const Ids right = greedy_continuation(prompt, 8, 8);
  Request request;
  request.prompt = prompt;
  request.max_tokens = 8;
  request.stop_ids = {right[3]};
  const std::uint64_t stopped = world.engine->submit(request);
  const std::uint64_t other = world.ask(some_ids(6, 11), 8);
  const auto results = world.finish();
  EXPECT_EQ(results.at(stopped).ids, Ids(right.begin(), right.begin() + 4));
  EXPECT_EQ(results.at(stopped).finish_reason, FinishReason::stop);
  EXPECT_EQ(results.at(other).ids.size(), 8u);
  EXPECT_EQ(results.at(other).finish_reason, FinishReason::length);
  EXPECT_TRUE(is_undisturbed(results.at(other), 8));
}

// Scoring by prefill in any chunks and by decode gives the same numbers: those of the ids alone.
TEST(Score, PrefillAndDecodeGiveTheNumbersOfTheIdsAlone) {
  const Ids ids = some_ids(30, 12);
  std::vector<double> right;
  for (std::size_t i = 1; i < ids.size(); ++i) {
    const std::vector<float> logits = stub_logits(context_hash({ids.begin(), ids.begin() + static_cast<long>(i)}, 8));
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x));
    right.push_back(std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(ids[i])]));
  }
  for (const std::int64_t chunk : {1, 7, 29, 30, 64}) {
    WorldOptions options;
    options.sliding = "ring";
    options.max_chunk = chunk;
    World world(options);
    Request prefill;
    prefill.prompt = ids;
    prefill.max_tokens = 0;
    prefill.score = true;
    Request decode;
    decode.prompt = {ids.front()};
    decode.forced.assign(ids.begin() + 1, ids.end());
    decode.max_tokens = 29;
    decode.score = true;
    const std::uint64_t a = world.engine->submit(prefill), b = world.engine->submit(decode);
    const auto results = world.finish();
    // The sampler promises 2e-6; half of it is room for the sum in fp32.
    EXPECT_THAT(results.at(a).nll, testing::Pointwise(testing::DoubleNear(3e-6), right)) << "chunk " << chunk;
    EXPECT_THAT(results.at(b).nll, testing::Pointwise(testing::DoubleNear(3e-6), right)) << "chunk " << chunk;
    EXPECT_TRUE(results.at(a).ids.empty());
    EXPECT_TRUE(world.nothing_held());
  }
}

TEST(Submit, RefusalsNameFieldAndNumbers) {
  World world({});
  const auto refusal = [&](Ids prompt, std::int64_t max_tokens) {
    Request request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    try {
      world.engine->submit(std::move(request));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      return error.full_text();
    }
    ADD_FAILURE() << "accepted";
    return std::string();
  };
  EXPECT_THAT(refusal({}, 1), HasSubstr("prompt"));
  EXPECT_THAT(refusal({1, 512}, 1), testing::AllOf(HasSubstr("prompt[1]"), HasSubstr("512")));
  EXPECT_THAT(refusal({-1}, 1), testing::AllOf(HasSubstr("prompt[0]"), HasSubstr("-1")));
  EXPECT_THAT(refusal({1}, -3), testing::AllOf(HasSubstr("max_tokens"), HasSubstr("-3")));
  EXPECT_THAT(refusal(some_ids(60, 1), 6), testing::AllOf(HasSubstr("60"), HasSubstr("65"), HasSubstr("64")));
  EXPECT_TRUE(world.engine->idle());
  // One token less fits exactly.
  const std::uint64_t id = world.ask(some_ids(60, 1), 5);
  EXPECT_EQ(world.finish().at(id).ids.size(), 5u);
}

}  // namespace
}  // namespace facet::test
