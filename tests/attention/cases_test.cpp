// Known faults of other implementations, with their right values.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>

#include "facet/sdk/kv_rows.h"
#include "world.h"

namespace facet::test {
namespace {

using abi::DType;
using abi::KvAddressing;
using abi::KvOrder;

constexpr KvAddressing kAddressings[] = {KvAddressing::contiguous, KvAddressing::ring, KvAddressing::paged};
constexpr KvOrder kOrders[] = {KvOrder::token_major, KvOrder::head_major};
constexpr DType kElements[] = {DType::f32, DType::bf16, DType::i8};

class Cases : public testing::TestWithParam<std::tuple<const char*, IsaLevel>> {
 protected:
  const char* stem() const { return std::get<0>(GetParam()); }
  std::uint64_t features() const { return std::get<1>(GetParam()).features; }
};

// Equal scores, values equal to the position.
Content position_content() {
  return {
      [](auto...) { return 1.0; }, [](auto...) { return 0.0; },
      [](std::uint64_t, std::int64_t position, std::int64_t, std::int64_t) { return static_cast<double>(position); }};
}

void expect_all(const std::vector<float>& result, std::int64_t row, std::int64_t width, float right) {
  for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
    ASSERT_EQ(result[static_cast<std::size_t>(i)], right) << "row " << row << " element " << i - row * width;
  }
}

// The window counts the current token: position 10 under window 4 sees 7, 8, 9, 10.
TEST_P(Cases, WindowCountsTheCurrentToken) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  const Shape shape{2, 1, 64, 4, 1.0f};
  for (const KvAddressing addressing : kAddressings) {
    for (const KvOrder order : kOrders) {
      for (const DType element : {DType::f32, DType::bf16}) {
        const World decode(shape, {addressing, order, element}, {{1, 10, 1}}, position_content());
        expect_all(decode.run(plugin), 0, 128, 8.5f);
        const World chunk(shape, {addressing, order, element}, {{1, 8, 4}}, position_content());
        const std::vector<float> rows = chunk.run(plugin);
        for (std::int64_t row = 0; row < 4; ++row) expect_all(rows, row, 128, 6.5f + static_cast<float>(row));
      }
    }
  }
}

// Every row sees its own position at least; the early rows of a prefill see exactly the positions up to their own.
TEST_P(Cases, PrefillLongerThanTheWindowSeesNoLaterKey) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  const Shape shape{2, 1, 64, 8, 1.0f};
  const World world(shape, {KvAddressing::ring, KvOrder::token_major, DType::f32}, {{1, 0, 20}}, position_content());
  const std::vector<float> rows = world.run(plugin);
  for (std::int64_t row = 0; row < 20; ++row) {
    const double mean = (static_cast<double>(sdk::window_begin(row, 8)) + static_cast<double>(row)) / 2.0;
    for (std::int64_t d = 0; d < 128; ++d) {
      ASSERT_NEAR(static_cast<double>(rows[static_cast<std::size_t>(row * 128 + d)]), mean, mean * 1e-6) << row;
    }
  }
}

// All scores -6e4: the plain mean of the values, not zero and not NaN.
TEST_P(Cases, VeryNegativeScoresKeepTheirWeights) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  Content content = position_content();
  content.key = [](std::uint64_t, std::int64_t, std::int64_t, std::int64_t d) { return d == 0 ? -60000.0 : 0.0; };
  const World world({2, 1, 64, 0, 1.0f}, {KvAddressing::paged, KvOrder::token_major, DType::f32}, {{1, 6, 1}}, content);
  expect_all(world.run(plugin), 0, 128, 3.0f);
}

// Scores that overflow to -infinity make the row see nothing: zeros, never (-inf) - (-inf).
TEST_P(Cases, ScoresOfMinusInfinityGiveZeros) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  Content content = position_content();
  content.key = [](std::uint64_t, std::int64_t, std::int64_t, std::int64_t d) {
    return d == 0 ? -std::numeric_limits<double>::infinity() : 0.0;
  };
  const World world({2, 1, 64, 0, 1.0f}, {KvAddressing::paged, KvOrder::token_major, DType::f32}, {{1, 2, 3}}, content);
  const std::vector<float> rows = world.run(plugin);
  for (std::int64_t row = 0; row < 3; ++row) expect_all(rows, row, 128, 0.0f);
}

// Rows of a step that belong to no sequence see no key: exact zeros. Sequences of no tokens disturb nobody.
TEST_P(Cases, RowsWithoutKeysAreZero) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  const Shape shape{2, 1, 64, 0, 1.0f};
  const Storage storage{KvAddressing::paged, KvOrder::token_major, DType::f32};
  const World world(shape, storage, {{1, 0, 0}, {2, 4, 2}, {3, 0, 0}, {4, 0, 0}}, position_content());
  const std::vector<float> rows = world.run(plugin);
  ASSERT_EQ(rows.size(), 256u);
  expect_all(rows, 0, 128, 2.0f);
  expect_all(rows, 1, 128, 2.5f);

  std::vector<float> queries(4 * 128, 1.0f);
  std::vector<float> output(4 * 128, std::numeric_limits<float>::quiet_NaN());
  const std::int32_t token_begin[] = {1, 1, 3, 3, 3};  // rows 0 and 3 are nobody's
  abi::BatchView batch = world.batch();
  batch.token_begin = token_begin;
  batch.token_count = 4;
  abi::AttentionProblem problem = world.problem();
  problem.max_step_tokens = 4;
  Lines error;
  abi::AttentionPlan plan{};
  ASSERT_EQ(plugin->plan(problem, &plan, error.sink()), abi::Status::ok) << error.joined();
  std::vector<std::byte> workspace(plan.workspace_bytes);
  abi::AttentionArgs args{};
  args.size = sizeof args;
  args.batch = &batch;
  args.kv = &world.view();
  args.queries = queries.data();
  args.query_stride = 128;
  args.output = output.data();
  args.output_stride = 128;
  args.workspace = {workspace.data(), workspace.size()};
  ASSERT_EQ(plugin->run(plan, args, error.sink()), abi::Status::ok) << error.joined();
  plugin->release(&plan);
  expect_all(output, 0, 128, 0.0f);
  expect_all(output, 1, 128, 2.0f);
  expect_all(output, 2, 128, 2.5f);
  expect_all(output, 3, 128, 0.0f);
}

// An empty step does nothing.
TEST_P(Cases, EmptyStep) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  const World world({2, 1, 64, 0, 1.0f}, {}, {{1, 0, 0}}, position_content());
  EXPECT_TRUE(world.run(plugin).empty());
}

// Unwritten rows hold NaN or zero, codes and scales too: the same finite bits.
TEST_P(Cases, UnwrittenRowsDoNotMatter) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  for (std::int64_t length = 1; length <= 40; ++length) {
    for (const DType element : kElements) {
      const Shape shape{8, 1, 64, length % 2 == 0 ? 0 : 8, 0.5f};
      Storage storage{kAddressings[length % 3], kOrders[length / 3 % 2], element, 16, 5};
      const std::vector<Piece> pieces{{31, length - 1, 1}, {32, 0, length}, {33, 2 * length, 3}};
      const World dirty(shape, storage, pieces, random_content());
      storage.fill = 0;
      const World clean(shape, storage, pieces, random_content());
      const std::vector<float> a = dirty.run(plugin);
      const std::vector<float> b = clean.run(plugin);
      for (const float x : a) ASSERT_TRUE(std::isfinite(x)) << describe(shape, storage, pieces);
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << describe(shape, storage, pieces);
    }
  }
}

// 64 equal keys, every value 30,000: a sum of weights in half precision would overflow.
TEST_P(Cases, LargeValuesDoNotOverflow) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  Content content = position_content();
  content.value = [](auto...) { return 30000.0; };
  for (const DType element : {DType::f32, DType::bf16}) {
    const float right = element == DType::f32 ? 30000.0f : sdk::bf16_to_float(sdk::float_to_bf16(30000.0f));
    for (const std::int64_t first : {0, 1, 63}) {
      const World world({2, 1, 64, 0, 1.0f}, {KvAddressing::paged, KvOrder::token_major, element},
                        {{1, first, 64 - first}}, content);
      const std::vector<float> rows = world.run(plugin);
      for (std::int64_t row = 0; row < 64 - first; ++row) {
        // A quotient of two sums of the same positive weights: within the roundings of 64 additions.
        for (std::int64_t d = 0; d < 128; ++d) {
          ASSERT_NEAR(rows[static_cast<std::size_t>(row * 128 + d)], right, right * 64.0f * 0x1p-24f);
        }
      }
      expect_all(rows, 63 - first, 128, right);  // weights are 1, sums are exact
    }
  }
}

TEST(BlockOffset, PassesTwoToThe31) {
  EXPECT_EQ(sdk::block_offset(32768, 65536), 2147483648);
}

// A pool of more than 2^31 elements: blocks at its end give the bits of blocks at its start. The pool is address space
// without memory; only six blocks are touched.
TEST_P(Cases, PoolsBeyondTwoToThe31Elements) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  const Shape shape{16, 8, 256, 0, 0.25f};
  const Storage storage{KvAddressing::paged, KvOrder::token_major, DType::bf16, 32};
  World world(shape, storage, {{41, 69, 1}}, random_content());
  abi::KvView& view = world.view();
  ASSERT_EQ(view.block_stride, 65536);  // 32 rows x 8 heads x 256; 16 rows hold keys and values in pools that mix them
  const std::vector<float> expected = world.run(plugin);
  const std::size_t bytes = std::size_t{32770} * 65536 * 2;
  void* pools[2];
  for (void*& pool : pools) {
    pool = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED) GTEST_SKIP() << "no 4.3 GB of address space for a sparse pool; raise ulimit -v";
  }
  const std::vector<std::int32_t> old(view.block_table, view.block_table + 3);
  const auto* old_keys = static_cast<const std::uint16_t*>(view.keys);
  const auto* old_values = static_cast<const std::uint16_t*>(view.values);
  for (const std::vector<std::int32_t>& ids : {std::vector<std::int32_t>{0, 1, 2, -1}, {32767, 32768, 32769, -1}}) {
    for (std::size_t b = 0; b < 3; ++b) {
      const std::int64_t from = sdk::block_offset(old[b], view.block_stride);
      const std::int64_t to = sdk::block_offset(ids[b], view.block_stride);
      std::memcpy(static_cast<std::uint16_t*>(pools[0]) + to, old_keys + from, 65536 * 2);
      std::memcpy(static_cast<std::uint16_t*>(pools[1]) + to, old_values + from, 65536 * 2);
    }
    view.keys = pools[0];
    view.values = pools[1];
    view.block_table = ids.data();
    const std::vector<float> moved = world.run(plugin);
    EXPECT_EQ(std::memcmp(moved.data(), expected.data(), expected.size() * sizeof(float)), 0) << "ids from " << ids[0];
  }
  for (void* pool : pools) munmap(pool, bytes);
}

std::vector<std::tuple<const char*, IsaLevel>> every_plugin() {
  std::vector<std::tuple<const char*, IsaLevel>> all{{"attention_reference", {"generic", 0}}};
  for (const IsaLevel& level : isa_levels()) all.emplace_back("attention_flash", level);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Attention, Cases, testing::ValuesIn(every_plugin()), [](const auto& entry) {
  return std::string(std::get<0>(entry.param)) + "_" + std::get<1>(entry.param).name;
});

}  // namespace
}  // namespace facet::test
