// What goes wrong in one place stays there: logits, batches, schedulers.
#include <gmock/gmock.h>

#include "world.h"

namespace facet::test {
namespace {

using testing::HasSubstr;

TEST(Logits, NanFailsOneRequestAndNotItsNeighbours) {
  World world({});
  Ids poisoned = some_ids(6, 1);
  poisoned.back() = kPoisonId;
  const std::uint64_t before = world.ask(some_ids(5, 2), 8), bad = world.ask(poisoned, 8),
                      after = world.ask(some_ids(7, 3), 8);
  const auto results = world.finish();
  EXPECT_EQ(results.at(bad).finish_reason, FinishReason::error);
  EXPECT_THAT(results.at(bad).error, HasSubstr("NaN"));
  EXPECT_TRUE(results.at(bad).ids.empty());
  for (const std::uint64_t id : {before, after}) {
    EXPECT_EQ(results.at(id).ids.size(), 8u);
    EXPECT_TRUE(is_undisturbed(results.at(id), 8));
  }
  EXPECT_TRUE(world.nothing_held());
}

TEST(Logits, NanFailsAScoreInsteadOfJoiningIt) {
  World world({});
  Request request;
  request.prompt = some_ids(9, 4);
  request.prompt[4] = kPoisonId;
  request.max_tokens = 0;
  request.score = true;
  const std::uint64_t bad = world.engine->submit(request);
  request.prompt[4] = 1;
  const std::uint64_t good = world.engine->submit(request);
  const auto results = world.finish();
  EXPECT_EQ(results.at(bad).finish_reason, FinishReason::error);
  EXPECT_THAT(results.at(bad).error, HasSubstr("position 4"));
  EXPECT_EQ(results.at(bad).nll.size(), 4u);
  EXPECT_EQ(results.at(good).finish_reason, FinishReason::length);
  EXPECT_EQ(results.at(good).nll.size(), 8u);
}

// The requests of a batch that throws fail with its text; requests that were not in it, and later ones, do not.
template <typename Thrown>
void fail_third_forward(const Thrown& thrown, const char* text) {
  WorldOptions options;
  options.sliding = "ring";
  options.global = "paged";
  options.max_sequences = 2;
  World world(options);
  const std::uint64_t a = world.ask(some_ids(5, 5), 8), b = world.ask(some_ids(6, 6), 8),
                      waiting = world.ask(some_ids(7, 7), 8);
  world.model->before_forward = [&](const StepInput&) {
    if (world.model->forwards == 3) throw thrown;
  };
  const auto results = world.finish();
  for (const std::uint64_t id : {a, b}) {
    EXPECT_EQ(results.at(id).finish_reason, FinishReason::error);
    EXPECT_THAT(results.at(id).error, HasSubstr(text));
    EXPECT_EQ(results.at(id).ids, greedy_continuation(results.at(id).prompt, 2, 8));
  }
  EXPECT_EQ(results.at(waiting).ids.size(), 8u);
  EXPECT_TRUE(is_undisturbed(results.at(waiting), 8));
  // The same prompt again: rows of the failed batch are not found in the cache.
  const std::uint64_t again = world.ask(some_ids(5, 5), 8);
  EXPECT_TRUE(is_undisturbed(world.finish().at(again), 8));
  EXPECT_TRUE(world.nothing_held());
}

TEST(Forward, ErrorOfAPluginFailsTheBatch) {
  Error error(ErrorKind::run, "linear plugin 'x' failed while running layers.3.mlp: failed: overflow");
  error.add_context("in layer 3 (global attention)");
  fail_third_forward(error, "in layer 3 (global attention)");
}

TEST(Forward, AnyOtherExceptionFailsTheBatch) {
  fail_third_forward(std::runtime_error("no such thing"), "no such thing");
  fail_third_forward(std::bad_alloc(), "bad_alloc");
}

// A scheduler that breaks one rule in step 2 and keeps all of them otherwise.
class Rogue {
 public:
  using Misdeed = std::function<abi::Status(const abi::SchedulerView&, const abi::StepBuilder&, abi::TextSink)>;
  explicit Rogue(Misdeed misdeed)
      : scheduler_([misdeed = std::move(misdeed)](const abi::SchedulerView& view, const abi::StepBuilder& builder,
                                                  abi::TextSink text) {
          if (view.step == 2) return misdeed(view, builder, text);
          std::int64_t granted = 0;
          for (std::uint32_t i = 0; i < view.sequence_count; ++i)
            builder.schedule(builder.context, view.sequences[i].id, view.max_chunk, &granted);
          return abi::Status::ok;
        }) {}

  // The error of step 2; then everything must still finish as if nothing had been.
  std::string error(WorldOptions options = {}) {
    options.max_chunk = 16;
    World world(options, scheduler_);
    world.ask(some_ids(5, 8), 6);
    world.ask(some_ids(30, 9), 6);
    world.step();
    std::string text;
    try {
      world.step();
      ADD_FAILURE() << "step 2 was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::run);
      text = error.full_text();
    }
    const auto results = world.finish(100);
    EXPECT_EQ(results.size(), 2u);
    for (const auto& [id, result] : results) EXPECT_TRUE(is_undisturbed(result, 8));
    EXPECT_TRUE(world.nothing_held());
    EXPECT_EQ(scheduler_.ended.size(), 2u);
    EXPECT_THAT(text, testing::AllOf(HasSubstr("scheduler plugin 'rogue' 1.2.3"), HasSubstr("step 2")));
    return text;
  }

 private:
  FunctionScheduler scheduler_;
};

abi::ScheduleResult schedule(const abi::StepBuilder& builder, std::uint64_t id, std::int64_t tokens) {
  std::int64_t granted = -1;
  const abi::ScheduleResult result = builder.schedule(builder.context, id, tokens, &granted);
  if (result != abi::ScheduleResult::scheduled) {
    EXPECT_EQ(granted, 0);
  }
  return result;
}

TEST(RogueScheduler, UnknownSequence) {
  Rogue rogue([](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    EXPECT_EQ(schedule(builder, view.sequences[0].id, 1), abi::ScheduleResult::scheduled);
    EXPECT_EQ(schedule(builder, 4711, 1), abi::ScheduleResult::invalid);
    return abi::Status::ok;
  });
  EXPECT_THAT(rogue.error(), testing::AllOf(HasSubstr("4711"), HasSubstr("not live")));
}

TEST(RogueScheduler, TheSameSequenceTwice) {
  Rogue rogue([](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    EXPECT_EQ(schedule(builder, view.sequences[1].id, 2), abi::ScheduleResult::scheduled);
    EXPECT_EQ(schedule(builder, view.sequences[1].id, 2), abi::ScheduleResult::invalid);
    return abi::Status::ok;
  });
  EXPECT_THAT(rogue.error(), testing::AllOf(HasSubstr("sequence 2"), HasSubstr("twice")));
}

TEST(RogueScheduler, MoreTokensThanAChunkAndNone) {
  for (const std::int64_t tokens : {17, 0, -1}) {
    Rogue rogue([tokens](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
      EXPECT_EQ(schedule(builder, view.sequences[1].id, tokens), abi::ScheduleResult::invalid);
      return abi::Status::ok;
    });
    EXPECT_THAT(rogue.error(),
                testing::AllOf(HasSubstr(fmt::format("scheduled {} tokens", tokens)), HasSubstr("max_chunk = 16")));
  }
}

TEST(RogueScheduler, Nothing) {
  Rogue rogue([](const abi::SchedulerView&, const abi::StepBuilder&, abi::TextSink) { return abi::Status::ok; });
  EXPECT_THAT(rogue.error(), testing::AllOf(HasSubstr("scheduled nothing"), HasSubstr("2 sequences")));
}

TEST(RogueScheduler, AnErrorOfItsOwn) {
  Rogue rogue([](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink text) {
    schedule(builder, view.sequences[0].id, 1);
    const std::string line = "lost the list";
    text.write(text.context, line.data(), line.size());
    return abi::Status::failed;
  });
  EXPECT_THAT(rogue.error(), testing::AllOf(HasSubstr("failed"), HasSubstr("lost the list")));
}

TEST(RogueScheduler, PreemptsWhatItMayNot) {
  Rogue working([](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    schedule(builder, view.sequences[0].id, 1);
    EXPECT_EQ(builder.preempt(builder.context, view.sequences[0].id), abi::ScheduleResult::invalid);
    return abi::Status::ok;
  });
  EXPECT_THAT(working.error(), testing::AllOf(HasSubstr("preempted sequence 1"), HasSubstr("works in this step")));
  Rogue unknown([](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    schedule(builder, view.sequences[0].id, 1);
    EXPECT_EQ(builder.preempt(builder.context, 99), abi::ScheduleResult::invalid);
    return abi::Status::ok;
  });
  EXPECT_THAT(unknown.error(), HasSubstr("preempted sequence 99"));
  Rogue waiting([](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    builder.preempt(builder.context, view.sequences[0].id);
    EXPECT_EQ(builder.preempt(builder.context, view.sequences[0].id), abi::ScheduleResult::invalid);
    schedule(builder, view.sequences[1].id, 1);
    return abi::Status::ok;
  });
  EXPECT_THAT(waiting.error(), HasSubstr("not running"));
}

TEST(Slots, MoreThanMaxSequencesNeverRun) {
  FunctionScheduler greedy([](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    std::int64_t running = 0;
    for (std::uint32_t i = 0; i < view.sequence_count; ++i) {
      const abi::ScheduleResult result = schedule(builder, view.sequences[i].id, 1);
      EXPECT_EQ(result, running < 2 ? abi::ScheduleResult::scheduled : abi::ScheduleResult::no_slot);
      ++running;
    }
    return abi::Status::ok;
  });
  WorldOptions options;
  options.max_sequences = 2;
  World world(options, greedy);
  for (std::uint64_t i = 0; i < 3; ++i) world.ask(some_ids(4, i), 3);
  for (const auto& [id, result] : world.finish(200)) EXPECT_TRUE(is_undisturbed(result, 8)) << id;
}

// A cache that cannot open one more sequence is an error of the step with the cache's name, also when it is met inside
// a scheduler, through which no exception may pass.
TEST(Cache, ItsErrorInsideASchedulerReachesTheCaller) {
  WorldOptions options;
  options.max_sequences = 2;
  World world(options);
  // Somebody else holds every slot of the caches.
  const Ids others = some_ids(4, 9);
  for (const std::uint64_t id : {1001, 1002}) world.model->kv().open(id, others, 0, 0);
  Engine engine(*world.model, world.scheduler, EngineLimits{2, 64, 64});
  Request request;
  request.prompt = some_ids(4, 1);
  request.max_tokens = 3;
  engine.submit(request);
  try {
    engine.step();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.full_text(), testing::AllOf(HasSubstr("kv_cache plugin 'static'"), HasSubstr("opening")));
  }
}

TEST(Limits, MoreSequencesThanTheCachesWerePlannedForAreRefused) {
  WorldOptions options;
  options.max_sequences = 2;
  World world(options);
  try {
    Engine engine(*world.model, world.scheduler, EngineLimits{3, 64, 64});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.message(), testing::AllOf(HasSubstr("max_sequences 3"), HasSubstr("the 2 the caches")));
  }
}

}  // namespace
}  // namespace facet::test
