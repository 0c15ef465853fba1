// Exact bytes, layouts, refusals and addresses past 2^31 elements.
#include <gmock/gmock.h>

#include "harness.h"

namespace facet::kvtest {
namespace {

using abi::Status;
using testing::HasSubstr;

std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Keys and values of one layer, each block padded to 64 bytes on its own; scales of i8 likewise.
std::uint64_t layer_bytes(std::uint64_t blocks, std::uint64_t rows, std::uint64_t heads, std::uint64_t dim,
                          const std::string& storage) {
  const std::uint64_t element = storage == "f32" ? 4 : storage == "bf16" ? 2 : 1;
  const std::uint64_t scales = storage == "i8" ? padded(rows * heads * 4) : 0;
  return 2 * blocks * (padded(rows * heads * dim * element) + scales);
}

TEST(Sizes, PoolBytesAreExact) {
  for (const std::string storage : {"bf16", "f32", "i8"}) {
    for (const abi::KvOrder order : {abi::KvOrder::head_major, abi::KvOrder::token_major}) {
      SCOPED_TRACE(storage);
      const abi::KvProblem problem = make_problem(8, 3, 50, 5);
      const Cache whole(load_policy("static", storage, {}), problem, order);
      EXPECT_EQ(whole.plan().pool_bytes, 2 * layer_bytes(3, 50, 2, 3, storage));
      const Cache ring(load_policy("ring", storage, {{"slack", 2}}), problem, order);
      EXPECT_EQ(ring.plan().pool_bytes, 2 * layer_bytes(3, 8 + 5 - 1 + 2, 2, 3, storage));
      // 7 older rows and 5 new ones in blocks of 4: at most 4 blocks.
      const Cache paged(load_policy("paged", storage, {{"block_tokens", 4}}), problem, order);
      EXPECT_EQ(paged.plan().pool_bytes, 2 * layer_bytes(3 * 4, 4, 2, 3, storage));
      const Cache pool(load_policy("paged", storage, {{"block_tokens", 4}, {"pool_tokens", 33}}), problem, order);
      EXPECT_EQ(pool.plan().pool_bytes, 2 * layer_bytes(9, 4, 2, 3, storage));
      EXPECT_EQ(pool.plan().block_count, 9);
    }
  }
}

TEST(Sizes, GemmaMemoryIsWhatTheModelPageSays) {
  abi::KvProblem sliding = make_problem(1024, 1, 8192, 1);
  sliding.layer_count = 40;
  sliding.kv_heads = 8;
  sliding.head_dim = 256;
  abi::KvProblem global = make_problem(0, 1, 8192, 1);
  global.layer_count = 8;
  global.kv_heads = 1;
  global.head_dim = 512;
  const auto bytes = [](const char* policy, const abi::KvProblem& problem) {
    const Cache::Instance instance = load_policy(policy, "bf16", {});
    abi::KvLayout layout{};
    EXPECT_GE(instance->layouts(problem, &layout, 1), 1u);
    abi::KvPlan plan{};
    Text text;
    EXPECT_EQ(instance->plan(problem, layout, &plan, text.sink()), Status::ok) << text.lines;
    return plan.pool_bytes;
  };
  EXPECT_EQ(bytes("static", sliding), 327680u * 8192);
  EXPECT_EQ(bytes("ring", sliding), 327680u * 1024);
  EXPECT_EQ(bytes("static", global), 16384u * 8192);
  EXPECT_EQ(bytes("paged", global), 16384u * 8192);
  global.key_channels = 128;
  EXPECT_EQ(bytes("static", global), 10240u * 8192);
  EXPECT_EQ(bytes("paged", global), 10240u * 8192);
}

// The key lies behind the value of its row; each has a scale of its own.
TEST(Sizes, SharedFormIsOneRow) {
  for (const char* name : {"static", "ring", "paged"}) {
    for (const std::string storage : {"bf16", "f32", "i8"}) {
      SCOPED_TRACE(name + (" " + storage));
      abi::KvProblem problem = make_problem(8, 3, 50, 5);
      problem.head_dim = 16;
      problem.key_channels = 4;
      const std::uint64_t element = storage == "f32" ? 4 : storage == "bf16" ? 2 : 1;
      Cache cache(load_policy(name, storage, {}), problem);
      ASSERT_EQ(cache.open(1), Status::ok);
      ASSERT_EQ(cache.reserve(1, 1), Status::ok);
      const abi::KvView view = cache.step({1}, 1);
      EXPECT_EQ(view.key_channels, 4);
      EXPECT_EQ(view.row_stride, 20);
      EXPECT_EQ(static_cast<const char*>(view.keys) - static_cast<const char*>(view.values),
                static_cast<std::ptrdiff_t>(16 * element));
      const std::uint64_t rows = view.layout.block_rows, blocks = static_cast<std::uint64_t>(cache.plan().block_count);
      const std::uint64_t scales = storage == "i8" ? 2 * padded(rows * 2 * 4) : 0;
      EXPECT_EQ(cache.plan().pool_bytes, 2 * blocks * (padded(rows * 2 * 20 * element) + scales));
      ASSERT_EQ(cache.commit(1, some_tokens(1)), Status::ok);
      EXPECT_EQ(cache.usage().bytes_used, 2 * 2 * (20 * element + (storage == "i8" ? 8 : 0)));
    }
  }
}

TEST(Sizes, KeysOfOddOrTooManyChannelsAreRefused) {
  const Cache::Instance instance = load_policy("static", "bf16", {});
  for (const std::int64_t channels : {-2, 3, 16, 18}) {
    abi::KvProblem problem = make_problem(0, 1, 64, 4);
    problem.head_dim = 16;
    problem.key_channels = channels;
    Text text;
    EXPECT_EQ(instance->supports(problem, text.sink()), 0u) << channels;
    EXPECT_THAT(text.lines, HasSubstr("key_channels is " + std::to_string(channels)));
  }
}

TEST(Sizes, BadProblemsAndLayoutsAreRefusedWithAllReasons) {
  for (const char* name : {"static", "ring", "paged"}) {
    SCOPED_TRACE(name);
    const Cache::Instance instance = load_policy(name, "bf16", {});
    abi::KvProblem bad = make_problem(8, 0, 64, 0);
    bad.head_dim = -1;
    bad.device = abi::Device::none;
    Text text;
    EXPECT_EQ(instance->supports(bad, text.sink()), 0u);
    for (const char* reason : {"max_sequences is 0", "max_chunk is 0", "head_dim is -1", "the device is none"})
      EXPECT_THAT(text.lines, HasSubstr(reason));
    EXPECT_EQ(instance->layouts(bad, nullptr, 0), 0u);

    abi::KvProblem huge = make_problem(1024, 2147483647, 2147483647, 1024);
    huge.kv_heads = 1 << 20;
    huge.head_dim = 1 << 20;
    Text too_large;
    EXPECT_EQ(instance->supports(huge, too_large.sink()), 0u);
    EXPECT_THAT(too_large.lines, HasSubstr("2^60"));

    const abi::KvProblem good = make_problem(8, 2, 64, 4);
    abi::KvLayout layout{};
    ASSERT_EQ(instance->layouts(good, &layout, 1), 2u);
    layout.element = abi::DType::f16;
    abi::KvPlan plan{};
    Text refused;
    EXPECT_EQ(instance->plan(good, layout, &plan, refused.sink()), Status::unsupported);
    EXPECT_THAT(refused.lines, HasSubstr("f16"));
    EXPECT_THAT(refused.lines, HasSubstr("bf16"));
  }
}

TEST(Sizes, BindChecksThePool) {
  for (const char* name : {"static", "ring", "paged"}) {
    SCOPED_TRACE(name);
    const Cache::Instance instance = load_policy(name, "bf16", {});
    const abi::KvProblem problem = make_problem(8, 2, 64, 4);
    alignas(64) static unsigned char memory[1 << 16];
    abi::KvPlan plan{};
    Text text;
    EXPECT_EQ(instance->bind(plan, {memory, sizeof memory}, text.sink()), Status::invalid_argument);
    EXPECT_EQ(instance->open(1, nullptr, 0, 0, text.sink()), Status::invalid_argument);
    abi::KvLayout layout{};
    instance->layouts(problem, &layout, 1);
    ASSERT_EQ(instance->plan(problem, layout, &plan, text.sink()), Status::ok);
    EXPECT_EQ(instance->bind(plan, {memory, plan.pool_bytes - 1}, text.sink()), Status::invalid_argument);
    EXPECT_EQ(instance->bind(plan, {memory + 4, plan.pool_bytes}, text.sink()), Status::invalid_argument);
    EXPECT_EQ(instance->bind(plan, {nullptr, plan.pool_bytes}, text.sink()), Status::invalid_argument);
    EXPECT_EQ(instance->bind(plan, {memory, plan.pool_bytes}, text.sink()), Status::ok) << text.lines;
    EXPECT_EQ(instance->bind(plan, {memory, plan.pool_bytes}, text.sink()), Status::invalid_argument);
    abi::KvView view{};
    EXPECT_EQ(instance->view(2, &view, text.sink()), Status::invalid_argument);
    EXPECT_EQ(instance->view(-1, &view, text.sink()), Status::invalid_argument);
    EXPECT_EQ(instance->view(1, &view, text.sink()), Status::ok);
    instance->release(&plan);
  }
}

// A policy only keeps books: it never touches the pool, so a pool far larger than this machine can be an address alone.
TEST(Sizes, LargePoolsAreAddressedIn64Bits) {
  const Cache::Instance instance = load_policy("paged", "bf16", {{"block_tokens", 16}, {"pool_tokens", 32770 * 16}});
  abi::KvProblem problem = make_problem(0, 1, 32770 * 16, 32770 * 16);
  problem.layer_count = 1;
  problem.kv_heads = 8;
  problem.head_dim = 512;  // 16 rows * 8 heads * 512 = 65,536 elements a block
  problem.device = abi::Device::cuda;
  abi::KvLayout layout{};
  instance->layouts(problem, &layout, 1);
  abi::KvPlan plan{};
  Text text;
  ASSERT_EQ(instance->plan(problem, layout, &plan, text.sink()), Status::ok) << text.lines;
  EXPECT_EQ(plan.pool_bytes, 32770ull * 65536 * 2 * 2);
  const std::uintptr_t base = 4096;
  ASSERT_EQ(instance->bind(plan, {reinterpret_cast<void*>(base), plan.pool_bytes}, text.sink()), Status::ok);
  ASSERT_EQ(instance->open(1, nullptr, 0, 0, text.sink()), Status::ok);
  ASSERT_EQ(instance->reserve(1, 32770 * 16, text.sink()), Status::ok) << text.lines;
  const std::uint64_t id = 1;
  ASSERT_EQ(instance->begin_step(&id, 1, text.sink()), Status::ok);
  abi::KvView view{};
  ASSERT_EQ(instance->view(0, &view, text.sink()), Status::ok);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.values) - base, 32770ull * 65536 * 2);
  // Blocks are given out in order here, so block 32,768 holds position 524,288.
  ASSERT_EQ(view.block_table[32768], 32768);
  EXPECT_EQ(sdk::kv_run(view, 0, 32768 * 16, 32768 * 16 + 1).offset, 2147483648);
  EXPECT_EQ(sdk::kv_run(view, 0, 32769 * 16 + 1, 32769 * 16 + 2).offset, 2147483648 + 65536 + view.row_stride);
  EXPECT_EQ(sdk::block_offset(32768, 65536), 2147483648);
}

}  // namespace
}  // namespace facet::kvtest
