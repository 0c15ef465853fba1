// What plugins answer against their contracts: plans, views, refusals and schedules that can never end.
#include <gmock/gmock.h>

#include <limits>

#include "facet/sdk/attention.h"
#include "facet/sdk/kv_cache.h"
#include "facet/sdk/linear.h"
#include "kv_plan_check.h"
#include "progress_watch.h"
#include "world.h"

namespace facet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void destroy_nothing(void* /*instance*/) {}

const LoadedPlugin& bent_plugin() {
  static const abi::PluginDescriptor kDescriptor = [] {
    abi::PluginDescriptor descriptor{};
    descriptor.size = sizeof descriptor;
    descriptor.kind = abi::PluginKind::kv_cache;
    descriptor.name = "bent";
    descriptor.version = "3.2.1";
    descriptor.destroy = destroy_nothing;
    return descriptor;
  }();
  static const LoadedPlugin kPlugin{"kv_cache_bent.so", &kDescriptor, 0};
  return kPlugin;
}

template <typename Call>
std::string error_of(ErrorKind kind, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.full_text();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

class NullLinear final : public sdk::LinearBase<int> {
  void check(const abi::LinearProblem&, sdk::Reasons&) const override {}
  std::unique_ptr<int> make_plan(const abi::LinearProblem&, abi::LinearPlan&) override { return nullptr; }
  void pack_weights(const int&, std::span<const abi::WeightView>, abi::Memory) override {}
  void launch(const int&, const abi::LinearArgs&) override {}
};

class NullAttention final : public sdk::AttentionBase<int> {
  void check(const abi::AttentionProblem&, sdk::Reasons&) const override {}
  std::vector<abi::KvLayout> offer(const abi::AttentionProblem&) const override { return {}; }
  std::unique_ptr<int> make_plan(const abi::AttentionProblem&, abi::AttentionPlan&) override { return nullptr; }
  void launch(const int&, const abi::AttentionArgs&) override {}
};

TEST(Plan, NullFromMakePlanIsAFailure) {
  NullLinear linear;
  abi::LinearPlan linear_plan{};
  SinkText linear_text;
  EXPECT_EQ(linear.plan(abi::LinearProblem{}, &linear_plan, linear_text.sink()), abi::Status::failed);
  EXPECT_THAT(linear_text.text(), HasSubstr("make_plan() returned null"));
  NullAttention attention;
  abi::AttentionPlan attention_plan{};
  SinkText attention_text;
  EXPECT_EQ(attention.plan(abi::AttentionProblem{}, &attention_plan, attention_text.sink()), abi::Status::failed);
  EXPECT_THAT(attention_text.text(), HasSubstr("make_plan() returned null"));
}

class NullCache final : public sdk::KvCacheBase {
  void check(const abi::KvProblem&, sdk::Reasons&) const override {}
  std::vector<abi::KvLayout> offer(const abi::KvProblem&) const override { return {}; }
  void make_plan(const abi::KvProblem&, const abi::KvLayout&, abi::KvPlan&) override {}
  void start(abi::Memory) override {}
  void open_sequence(std::uint64_t, Tokens, std::uint64_t) override {}
  void reserve_rows(std::uint64_t, std::int64_t) override {}
  void cancel_rows(std::uint64_t) override {}
  void fix_tables(std::span<const std::uint64_t>) override {}
  void fill_view(std::int64_t, abi::KvView&) override {}
  void commit_rows(std::uint64_t, Tokens) override {}
  void take_back(std::uint64_t, std::int64_t) override {}
  void close_sequence(std::uint64_t) override {}
  void report(abi::KvUsage&) const override {}
};

// Rows of the shared form look like longer rows of whole keys: who does not heed key_channels would read past values.
TEST(SharedForm, IsRefusedForPluginsThatDoNotSayTheyKnowIt) {
  const NullAttention attention;
  const NullCache cache;
  abi::AttentionProblem read{};
  abi::KvProblem stored{};
  SinkText none;
  EXPECT_NE(attention.supports(read, none.sink()), 0u);
  EXPECT_NE(cache.supports(stored, none.sink()), 0u);
  read.key_channels = stored.key_channels = 32;
  SinkText reads, stores;
  EXPECT_EQ(attention.supports(read, reads.sink()), 0u);
  EXPECT_THAT(reads.text(), HasSubstr("reads no shared form of the cache (key_channels 32)"));
  EXPECT_EQ(cache.supports(stored, stores.sink()), 0u);
  EXPECT_THAT(stores.text(), HasSubstr("stores no shared form of the cache (key_channels 32)"));
}

TEST(Plan, SizesNoDeviceHoldsAreRefused) {
  EXPECT_NO_THROW(check_planned_bytes(bent_plugin(), "packed_bytes", std::uint64_t{1} << 46));
  for (const std::uint64_t bytes : {(std::uint64_t{1} << 46) + 1, std::numeric_limits<std::uint64_t>::max()}) {
    EXPECT_THAT(
        error_of(ErrorKind::plugin, [&] { check_planned_bytes(bent_plugin(), "packed_bytes", bytes); }),
        AllOf(HasSubstr("'bent' 3.2.1"), HasSubstr(fmt::format("packed_bytes = {}", bytes)), HasSubstr("64 TiB")));
  }
}

struct PlanCase {
  const char* text;  // of the error
  std::function<void(abi::KvPlan&)> bend;
};

TEST(KvPlan, EveryWrongFieldIsNamed) {
  abi::KvProblem problem{};
  problem.max_context = 64;
  abi::KvPlan good{};
  good.layout = {sizeof(abi::KvLayout),
                 abi::KvAddressing::paged,
                 abi::KvOrder::token_major,
                 abi::DType::f32,
                 abi::KvScales::none,
                 16,
                 64};
  const abi::KvLayout layout = good.layout;
  good.pool_alignment = 4096;
  good.block_count = good.sequence_blocks = good.max_sequence_tokens = good.max_chunk = 1;
  EXPECT_NO_THROW(check_kv_plan(bent_plugin(), problem, layout, good));
  const std::vector<PlanCase> cases = {
      {"ring token-major", [](auto& plan) { plan.layout.addressing = abi::KvAddressing::ring; }},
      {"head-major", [](auto& plan) { plan.layout.order = abi::KvOrder::head_major; }},
      {"bf16", [](auto& plan) { plan.layout.element = abi::DType::bf16; }},
      {"with a scale", [](auto& plan) { plan.layout.scales = abi::KvScales::per_row_head; }},
      {"block rows 8", [](auto& plan) { plan.layout.block_rows = 8; }},
      {"alignment 32", [](auto& plan) { plan.layout.alignment = 32; }},
      {"pool_alignment = 0;", [](auto& plan) { plan.pool_alignment = 0; }},
      {"pool_alignment = 96;", [](auto& plan) { plan.pool_alignment = 96; }},
      {"pool_alignment = 4194304;", [](auto& plan) { plan.pool_alignment = 4 << 20; }},
      {"pool_bytes = 70368744177665;", [](auto& plan) { plan.pool_bytes = (std::uint64_t{1} << 46) + 1; }},
      {"block_count = 0;", [](auto& plan) { plan.block_count = 0; }},
      {"sequence_blocks = -1;", [](auto& plan) { plan.sequence_blocks = -1; }},
      {"max_sequence_tokens = 0; allowed are 1 to 64", [](auto& plan) { plan.max_sequence_tokens = 0; }},
      {"max_sequence_tokens = 65; allowed are 1 to 64", [](auto& plan) { plan.max_sequence_tokens = 65; }},
      {"max_chunk = 0;", [](auto& plan) { plan.max_chunk = 0; }},
      {"rollback_depth = -1;", [](auto& plan) { plan.rollback_depth = -1; }},
      {"prefix_reuse = 2; allowed are 0 to 1", [](auto& plan) { plan.prefix_reuse = 2; }},
  };
  for (const PlanCase& wrong : cases) {
    abi::KvPlan plan = good;
    wrong.bend(plan);
    EXPECT_THAT(error_of(ErrorKind::plugin, [&] { check_kv_plan(bent_plugin(), problem, layout, plan); }),
                AllOf(HasSubstr("kv_cache plugin 'bent'"), HasSubstr(wrong.text)));
  }
}

// Takes the place of a group's policy while it lives, and passes calls on except where the test bends the answer.
class BentCache final : public abi::KvCache {
 public:
  explicit BentCache(KvGroup& group) : group_(group), inner_(std::move(group.cache)) {
    group_.cache = PluginInstance<abi::KvCache>(&bent_plugin(), this);
  }
  BentCache(const BentCache&) = delete;
  BentCache& operator=(const BentCache&) = delete;
  ~BentCache() { group_.cache = std::move(inner_); }

  std::function<void(abi::KvView&)> bend_view;
  bool full = false;  // answers out_of_memory whatever is asked

  std::uint32_t supports(const abi::KvProblem& problem, abi::TextSink text) const noexcept override {
    return inner_->supports(problem, text);
  }
  std::uint32_t layouts(const abi::KvProblem& problem, abi::KvLayout* out, std::uint32_t most) const noexcept override {
    return inner_->layouts(problem, out, most);
  }
  abi::Status plan(const abi::KvProblem& problem, const abi::KvLayout& layout, abi::KvPlan* plan,
                   abi::TextSink text) noexcept override {
    return inner_->plan(problem, layout, plan, text);
  }
  abi::Status bind(const abi::KvPlan& plan, abi::Memory pool, abi::TextSink text) noexcept override {
    return inner_->bind(plan, pool, text);
  }
  std::int64_t match(const std::int32_t* tokens, std::int64_t count, std::uint64_t salt,
                     std::int64_t limit) const noexcept override {
    return inner_->match(tokens, count, salt, limit);
  }
  abi::Status open(std::uint64_t id, const std::int32_t* tokens, std::int64_t reuse, std::uint64_t salt,
                   abi::TextSink text) noexcept override {
    return inner_->open(id, tokens, reuse, salt, text);
  }
  abi::Status reserve(std::uint64_t id, std::int64_t count, abi::TextSink text) noexcept override {
    if (!full) return inner_->reserve(id, count, text);
    const std::string line = "all blocks are lent";
    text.write(text.context, line.data(), line.size());
    return abi::Status::out_of_memory;
  }
  void cancel(std::uint64_t id) noexcept override { inner_->cancel(id); }
  abi::Status begin_step(const std::uint64_t* ids, std::int32_t count, abi::TextSink text) noexcept override {
    return inner_->begin_step(ids, count, text);
  }
  abi::Status view(std::int64_t layer, abi::KvView* view, abi::TextSink text) noexcept override {
    const abi::Status status = inner_->view(layer, view, text);
    if (bend_view) bend_view(*view);
    return status;
  }
  abi::Status commit(std::uint64_t id, const std::int32_t* tokens, std::int64_t count,
                     abi::TextSink text) noexcept override {
    return inner_->commit(id, tokens, count, text);
  }
  abi::Status rollback(std::uint64_t id, std::int64_t count, abi::TextSink text) noexcept override {
    return inner_->rollback(id, count, text);
  }
  void close(std::uint64_t id) noexcept override { inner_->close(id); }
  void usage(abi::KvUsage* usage) const noexcept override { inner_->usage(usage); }
  void release(abi::KvPlan* plan) noexcept override { inner_->release(plan); }

 private:
  KvGroup& group_;
  PluginInstance<abi::KvCache> inner_;
};

struct ViewCase {
  const char* text;  // of the error
  std::function<void(abi::KvView&)> bend;
};

TEST(KvView, WhatLeadsOutOfThePoolFailsTheBatch) {
  static const std::int32_t kTooHigh[] = {4}, kTooLow[] = {-2};
  const auto moved = [](void* data, std::int64_t bytes) {
    return static_cast<void*>(static_cast<char*>(data) + bytes);
  };
  const std::vector<ViewCase> cases = {
      {"keys = null", [](auto& view) { view.keys = nullptr; }},
      {"values = null", [](auto& view) { view.values = nullptr; }},
      {"keys = 0x", [&](auto& view) { view.keys = moved(view.keys, -4); }},
      {"blocks at values", [&](auto& view) { view.values = moved(view.values, 64); }},
      {"block_table = null", [](auto& view) { view.block_table = nullptr; }},
      {"block_table[0, 0] of the global group = 4; allowed are -1 to 3",
       [](auto& view) { view.block_table = kTooHigh; }},
      {"block_table[0, 0] of the global group = -2", [](auto& view) { view.block_table = kTooLow; }},
      {"table_stride = 0", [](auto& view) { view.table_stride = 0; }},
      {"layout = contiguous token-major", [](auto& view) { view.layout.order = abi::KvOrder::token_major; }},
      {"block rows 1073741824", [](auto& view) { view.layout.block_rows = 1 << 30; }},
      {"block rows any", [](auto& view) { view.layout.block_rows = 0; }},
      {"block_stride = 0", [](auto& view) { view.block_stride = 0; }},
      {"row_stride = -2", [](auto& view) { view.row_stride = -2; }},
      {"head_stride = 0", [](auto& view) { view.head_stride = 0; }},
      {"block_stride = 9223372036854775807",
       [](auto& view) { view.block_stride = std::numeric_limits<std::int64_t>::max(); }},
      {"blocks at keys", [](auto& view) { view.block_stride *= 3; }},
      {"kv_heads = 2; allowed is 1", [](auto& view) { view.kv_heads = 2; }},
      {"head_dim = 4; allowed is 2", [](auto& view) { view.head_dim = 4; }},
      {"key_channels = 2; allowed is 0", [](auto& view) { view.key_channels = 2; }},
      {"ring_rows = 8", [](auto& view) { view.ring_rows = 8; }},
  };
  for (const ViewCase& wrong : cases) {
    SCOPED_TRACE(wrong.text);
    World world({});
    BentCache cache(world.model->kv().groups()[1]);
    cache.bend_view = wrong.bend;
    const std::uint64_t bad = world.ask(some_ids(5, 1), 3);
    const RequestResult failed = world.finish(10).at(bad);
    EXPECT_EQ(failed.finish_reason, FinishReason::error);
    EXPECT_THAT(failed.error, AllOf(HasSubstr("kv_cache plugin 'bent' 3.2.1"), HasSubstr(wrong.text)));
    EXPECT_EQ(world.model->forwards, 0);
    cache.bend_view = nullptr;
    const std::uint64_t good = world.ask(some_ids(5, 1), 3);
    EXPECT_TRUE(is_undisturbed(world.finish(10).at(good), 8));
    EXPECT_TRUE(world.nothing_held());
  }
}

TEST(KvCache, OneThatIsAlwaysFullIsNamedBesideTheScheduler) {
  World world({});
  BentCache cache(world.model->kv().groups()[1]);
  cache.full = true;
  const std::uint64_t id = world.ask(some_ids(5, 1), 3);
  EXPECT_THAT(error_of(ErrorKind::run, [&] { world.step(); }),
              AllOf(HasSubstr("scheduled nothing"), HasSubstr("no_memory from kv_cache plugin 'bent' 3.2.1"),
                    HasSubstr("all blocks are lent"), HasSubstr("holds no other live sequence")));
  cache.full = false;
  EXPECT_TRUE(is_undisturbed(world.finish(20).at(id), 8));
}

// The first half of a prompt, again and again.
TEST(Livelock, PreemptingForEverIsAnErrorOfTheScheduler) {
  bool honest = false;
  FunctionScheduler scheduler([&](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    const abi::SequenceView& sequence = view.sequences[0];
    if (!honest && sequence.state == abi::SequenceState::running) builder.preempt(builder.context, sequence.id);
    std::int64_t granted = 0;
    builder.schedule(builder.context, sequence.id, 4, &granted);
    return abi::Status::ok;
  });
  World world({}, scheduler);
  const std::uint64_t id = world.ask(some_ids(8, 1), 3);
  for (std::int64_t step = 0; step <= kMaxVainPreemptions; ++step) ASSERT_NO_THROW(world.step());
  EXPECT_THAT(error_of(ErrorKind::run, [&] { world.step(); }),
              AllOf(HasSubstr("scheduler plugin 'rogue'"), HasSubstr("preempted sequence 1 for the 1001th time")));
  honest = true;
  EXPECT_TRUE(is_undisturbed(world.finish(20).at(id), 8));
  EXPECT_TRUE(world.nothing_held());
}

// A request that starves behind another one is a matter of policy: its turn comes.
TEST(Livelock, StarvingBehindWorkThatGoesOnIsNone) {
  FunctionScheduler scheduler([](const abi::SchedulerView& view, const abi::StepBuilder& builder, abi::TextSink) {
    std::int64_t granted = 0;
    for (std::uint32_t i = 0; i < view.sequence_count; ++i) {
      const abi::SequenceView& sequence = view.sequences[i];
      if (i > 0 && sequence.state == abi::SequenceState::running) builder.preempt(builder.context, sequence.id);
      builder.schedule(builder.context, sequence.id, 4, &granted);
    }
    return abi::Status::ok;
  });
  WorldOptions options;
  options.max_context = 2048;
  World world(options, scheduler);
  world.ask(some_ids(4, 1), kMaxVainPreemptions + 100);
  const std::uint64_t starved = world.ask(some_ids(8, 2), 3);
  const auto results = world.finish(3000);
  EXPECT_GT(results.at(starved).preemptions, kMaxVainPreemptions);
  EXPECT_TRUE(is_undisturbed(results.at(starved), 8));
}

}  // namespace
}  // namespace facet::test
