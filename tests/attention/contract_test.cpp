// Refusals with all reasons, offered layouts, options, and calls that break their plan.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "facet/abi/layout.h"
#include "world.h"

namespace facet::test {
namespace {

using abi::DType;
using abi::KvAddressing;
using abi::KvOrder;
using abi::Status;

class Contract : public testing::TestWithParam<const char*> {};

TEST_P(Contract, DescriptorIsComplete) {
  const TestHost host(2);
  const AttentionPlugin plugin(GetParam(), host);
  const abi::PluginDescriptor& descriptor = plugin.descriptor();
  EXPECT_EQ(descriptor.size, sizeof descriptor);
  EXPECT_EQ(descriptor.layout_hash, abi::kLayoutHash);
  EXPECT_EQ(descriptor.kind, abi::PluginKind::attention);
  EXPECT_EQ(std::string("attention_") + descriptor.name, GetParam());
  EXPECT_EQ(descriptor.flags, abi::kDeterministic | abi::kBatchInvariant | abi::kRunReentrant);
  EXPECT_EQ(descriptor.phases, abi::kPrefill | abi::kDecode);
}

TEST_P(Contract, RefusesWithEveryReason) {
  const TestHost host(2);
  const AttentionPlugin plugin(GetParam(), host);
  abi::AttentionProblem problem = make_problem({3, 2, 516, 0, 1.0f}, {}, 16, {{1, 0, 1}});
  problem.input = DType::bf16;
  problem.window = -1;
  problem.layout.element = DType::i8;
  Lines reasons;
  EXPECT_EQ(plugin->supports(problem, reasons.sink()), 0u);
  const std::string text = reasons.joined();
  for (const char* part :
       {"queries are bf16", "3 query heads are not divisible by 2 KV heads", "head_dim 516 is outside 1..512",
        "head_dim 516 is not a multiple of 8", "window -1 is negative", "KV element i8 needs a scale a row and head"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  }
  EXPECT_EQ(reasons.lines.size(), 6u) << text;
  Lines error;
  abi::AttentionPlan plan{};
  EXPECT_EQ(plugin->plan(problem, &plan, error.sink()), Status::unsupported);
  EXPECT_NE(error.joined().find("window -1 is negative"), std::string::npos);
}

TEST_P(Contract, RefusesOtherDevicesAndEmptyShapes) {
  const TestHost host(2);
  const AttentionPlugin plugin(GetParam(), host);
  abi::AttentionProblem problem = make_problem({2, 1, 64, 0, 1.0f}, {}, 16, {{1, 0, 1}});
  EXPECT_EQ(plugin->supports(problem, Lines().sink()), 1u);
  const auto refused = [&](auto change) {
    abi::AttentionProblem changed = problem;
    change(changed);
    Lines reasons;
    const bool no = plugin->supports(changed, reasons.sink()) == 0;
    return no && reasons.lines.size() == 1;
  };
  EXPECT_TRUE(refused([](auto& p) { p.device = abi::Device::cuda; }));
  EXPECT_TRUE(refused([](auto& p) { p.output = DType::bf16; }));
  EXPECT_TRUE(refused([](auto& p) { p.query_heads = 0; }));
  EXPECT_TRUE(refused([](auto& p) { p.head_dim = 0; }));
  EXPECT_TRUE(refused([](auto& p) { p.head_dim = 60; }));
  EXPECT_TRUE(refused([](auto& p) { p.scale = HUGE_VALF; }));
  EXPECT_TRUE(refused([](auto& p) { p.max_context = 0; }));
  EXPECT_TRUE(refused([](auto& p) { p.layout.block_rows = 0; }));
  EXPECT_TRUE(refused([](auto& p) { p.layout.element = DType::f16; }));
  EXPECT_TRUE(refused([](auto& p) { p.layout.addressing = KvAddressing::none; }));
}

TEST_P(Contract, OffersEveryLayoutOnce) {
  const TestHost host(2);
  const AttentionPlugin plugin(GetParam(), host);
  abi::AttentionProblem problem = make_problem({2, 1, 64, 0, 1.0f}, {}, 16, {{1, 0, 1}});
  problem.layout = {};
  std::vector<abi::KvLayout> layouts(64);
  const std::uint32_t count = plugin->layouts(problem, layouts.data(), 64);
  ASSERT_EQ(count, 18u);  // 3 addressings x 2 orders x 3 element types
  EXPECT_EQ(plugin->layouts(problem, layouts.data(), 1), count) << "capacity limits what is written, not the count";
  std::set<std::tuple<KvAddressing, KvOrder, DType>> seen;
  for (std::uint32_t i = 0; i < count; ++i) {
    seen.insert({layouts[i].addressing, layouts[i].order, layouts[i].element});
    problem.layout = layouts[i];
    problem.layout.block_rows = 16;
    EXPECT_EQ(plugin->supports(problem, Lines().sink()), 1u);
  }
  EXPECT_EQ(seen.size(), 18u);
}

// Runs `world` after `change` has broken the call; returns the plugin's line.
template <typename Change>
std::string broken_call(const AttentionPlugin& plugin, World& world, Change change) {
  Lines error;
  abi::AttentionPlan plan{};
  EXPECT_EQ(plugin->plan(world.problem(), &plan, error.sink()), Status::ok);
  std::vector<std::byte> workspace(plan.workspace_bytes);
  std::vector<float> output(world.queries().size(), 7.0f);
  abi::AttentionArgs args{};
  args.size = sizeof args;
  abi::BatchView batch = world.batch();
  abi::KvView view = world.view();
  args.batch = &batch;
  args.kv = &view;
  args.queries = world.queries().data();
  args.query_stride = world.problem().query_heads * world.problem().head_dim;
  args.output = output.data();
  args.output_stride = args.query_stride;
  args.workspace = {workspace.data(), workspace.size()};
  change(args, batch, view);
  EXPECT_EQ(plugin->run(plan, args, error.sink()), Status::invalid_argument);
  for (const float x : output) EXPECT_EQ(x, 7.0f) << "refused before any output";
  plugin->release(&plan);
  return error.joined();
}

TEST_P(Contract, NamesWhatACallBreaks) {
  const TestHost host(2);
  const AttentionPlugin plugin(GetParam(), host);
  World ring({2, 1, 64, 8, 1.0f}, {KvAddressing::ring, KvOrder::token_major, DType::f32}, {{1, 20, 4}},
             random_content());
  EXPECT_NE(broken_call(plugin, ring, [](auto&, auto&, abi::KvView& view) { view.ring_rows = 10; })
                .find("needs positions 13..23, 11 rows, and its ring has 10"),
            std::string::npos);
  World paged({2, 1, 64, 0, 1.0f}, {KvAddressing::paged, KvOrder::token_major, DType::f32}, {{1, 40, 1}},
              random_content());
  const std::int32_t hole[] = {0, -1, 2, 3};
  EXPECT_NE(broken_call(plugin, paged, [&](auto&, auto&, abi::KvView& view) { view.block_table = hole; })
                .find("needs block 1 of its block table, which is not resident"),
            std::string::npos);
  EXPECT_NE(broken_call(plugin, paged, [](auto&, auto&, abi::KvView& view) { view.layout.element = DType::bf16; })
                .find("the plan was made for paged token-major f32"),
            std::string::npos);
  EXPECT_NE(broken_call(plugin, paged, [](auto& args, auto&, auto&) { args.workspace.bytes = 8; })
                .find("the workspace has 8 bytes"),
            std::string::npos);
  const std::int32_t late[] = {41};
  EXPECT_NE(broken_call(plugin, paged, [&](auto&, abi::BatchView& batch, auto&) { batch.first_position = late; })
                .find("contexts of 41 rows"),
            std::string::npos);
  EXPECT_NE(broken_call(plugin, paged, [](auto&, abi::BatchView& batch, auto&) { batch.token_count = 2; })
                .find("a step of 2 tokens"),
            std::string::npos);
}

TEST(FlashOptions, KeyBlockIsAPowerOfTwo) {
  const TestHost host(1);
  try {
    const AttentionPlugin plugin("attention_flash", host, {{"key_block", 48}});
    FAIL() << "48 was accepted";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "option key_block is 48, which is not a power of two; use 16, 32, 64, 128 or 256\n");
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, Contract, testing::Values("attention_reference", "attention_flash"));

}  // namespace
}  // namespace facet::test
