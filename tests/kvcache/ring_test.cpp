// What a ring holds, how much it takes at once, and that every query finds its whole window.
#include <gmock/gmock.h>

#include "harness.h"

namespace facet::kvtest {
namespace {

using abi::Status;
using testing::HasSubstr;

Cache ring(std::int64_t rows, std::int64_t window, std::int64_t max_chunk, std::int64_t max_context,
           std::int64_t slack = 0) {
  return Cache(load_policy("ring", "f32", {{"rows", rows}, {"slack", slack}}),
               make_problem(window, 3, max_context, max_chunk));
}

// Which position in [0, length) each slot of a ring holds; -1: none of them.
std::vector<std::int64_t> slots(Cache& cache, std::uint64_t sequence, const Tokens& tokens, std::int64_t length) {
  const abi::KvView view = cache.step({sequence});
  std::vector<std::int64_t> held(static_cast<std::size_t>(view.ring_rows), -1);
  for (std::int64_t p = 0; p < length; ++p)
    if (cache.wrong_rows(0, p, p + 1, tokens, 0).empty()) held[static_cast<std::size_t>(p % view.ring_rows)] = p;
  return held;
}

TEST(Ring, LongPrefillIsRefusedBeforeItOverwritesAndSlotsHoldTheLastPositions) {
  Cache cache = ring(8, 8, 20, 64);
  const Tokens tokens = some_tokens(20);
  ASSERT_EQ(cache.plan().max_chunk, 1);
  ASSERT_EQ(cache.open(1), Status::ok);
  EXPECT_EQ(cache.reserve(1, 20), Status::invalid_argument);
  EXPECT_THAT(cache.error(), HasSubstr("wants 20 rows in one step, at most 1 fit (slot of 8 rows, window 8)"));
  for (std::int64_t p = 0; p < 20; ++p)
    ASSERT_EQ(cache.feed(1, slice(tokens, 0, p), slice(tokens, p, p + 1)), Status::ok) << cache.error();
  EXPECT_EQ(slots(cache, 1, tokens, 20), (std::vector<std::int64_t>{16, 17, 18, 19, 12, 13, 14, 15}));
}

TEST(Ring, DerivedRowsTakeTheWholeChunk) {
  Cache cache = ring(0, 8, 20, 64);
  EXPECT_EQ(cache.plan().layout.block_rows, 27u);
  EXPECT_EQ(cache.plan().max_chunk, 20);
  const Tokens tokens = some_tokens(20);
  ASSERT_EQ(cache.open(1), Status::ok);
  ASSERT_EQ(cache.feed(1, {}, tokens), Status::ok);
  // Row 5 sees keys 0..5, row 12 sees 5..12: all positions of the chunk are there at once.
  cache.step({1});
  EXPECT_TRUE(cache.wrong_rows(0, 0, 20, tokens, 0).empty());
}

TEST(Ring, LargestSafeChunkFollowsFromRowsAndWindow) {
  Cache small = ring(16, 8, 17, 100);
  EXPECT_EQ(small.plan().max_chunk, 9);
  Cache large = ring(2048, 1024, 2048, 4096);
  EXPECT_EQ(large.plan().max_chunk, 1025);
  ASSERT_EQ(large.open(1), Status::ok);
  EXPECT_EQ(large.reserve(1, 1024), Status::ok);
  EXPECT_EQ(large.reserve(1, 1025), Status::ok);
  EXPECT_EQ(large.reserve(1, 1026), Status::invalid_argument);
  EXPECT_EQ(large.reserve(1, 2048), Status::invalid_argument);
}

TEST(Ring, EveryChunkSizeKeepsTheWindowOfEveryQueryOrIsRefused) {
  const Tokens tokens = some_tokens(100);
  for (const std::int64_t chunk : {1, 4, 8, 9, 10, 16, 17}) {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    Cache cache = ring(16, 8, chunk, 100);
    ASSERT_EQ(cache.open(1), Status::ok);
    if (chunk > 9) {
      EXPECT_EQ(cache.reserve(1, chunk), Status::invalid_argument);
      continue;
    }
    for (std::int64_t begin = 0; begin < 100; begin += chunk) {
      const std::int64_t end = std::min<std::int64_t>(100, begin + chunk);
      ASSERT_EQ(cache.reserve(1, end - begin), Status::ok) << cache.error();
      cache.step({1});
      cache.write(0, begin, end, tokens, 0);
      for (std::int64_t query = begin; query < end; ++query)
        ASSERT_TRUE(cache.wrong_rows(0, sdk::window_begin(query, 8), query + 1, tokens, 0).empty())
            << "query " << query;
      ASSERT_EQ(cache.commit(1, slice(tokens, begin, end)), Status::ok);
    }
  }
}

TEST(Ring, ResidentAreTheLastPositionsAtEveryLength) {
  for (std::int64_t prompt = 1; prompt <= 40; ++prompt) {
    SCOPED_TRACE("prompt " + std::to_string(prompt));
    Cache cache = ring(8, 8, 1, 64);
    const Tokens tokens = some_tokens(prompt + 3, static_cast<std::int32_t>(prompt));
    ASSERT_EQ(cache.open(1), Status::ok);
    for (std::int64_t n = 1; n <= prompt + 3; ++n) {
      ASSERT_EQ(cache.feed(1, slice(tokens, 0, n - 1), slice(tokens, n - 1, n)), Status::ok);
      if (n < prompt) continue;
      std::vector<std::int64_t> expected(8, -1);
      for (std::int64_t p = std::max<std::int64_t>(0, n - 8); p < n; ++p) expected[static_cast<std::size_t>(p % 8)] = p;
      ASSERT_EQ(slots(cache, 1, tokens, n), expected) << "after " << n << " tokens";
      // 2 layers, keys and values, 2 heads of 3 floats.
      ASSERT_EQ(cache.usage().bytes_used, static_cast<std::uint64_t>(std::min<std::int64_t>(n, 8)) * 2 * 2 * 2 * 3 * 4);
    }
  }
}

TEST(Ring, GemmaWindowHoldsAroundItsEdges) {
  for (const std::int64_t prompt : {1023, 1024, 1025, 2047, 2048, 2049}) {
    SCOPED_TRACE("prompt " + std::to_string(prompt));
    Cache cache = ring(0, 1024, 256, 4096);
    EXPECT_EQ(cache.plan().layout.block_rows, 1024u + 256 - 1);
    const Tokens tokens = some_tokens(prompt + 3);
    ASSERT_EQ(cache.open(1), Status::ok);
    std::int64_t length = 0;
    while (length < prompt + 3) {
      const std::int64_t end = length < prompt ? std::min(prompt, length + 256) : length + 1;
      ASSERT_EQ(cache.feed(1, slice(tokens, 0, length), slice(tokens, length, end)), Status::ok);
      length = end;
      cache.step({1});
      if (length < prompt) continue;
      ASSERT_TRUE(cache.wrong_rows(0, sdk::window_begin(length - 1, 1024), length, tokens, 0).empty());
    }
  }
}

TEST(Ring, SlackIsTheRollbackDepthAndCountsFromTheMostRowsHeld) {
  Cache cache = ring(0, 8, 4, 64, 3);
  EXPECT_EQ(cache.plan().layout.block_rows, 8u + 4 - 1 + 3);
  EXPECT_EQ(cache.plan().rollback_depth, 3);
  const Tokens tokens = some_tokens(24);
  ASSERT_EQ(cache.open(1), Status::ok);
  for (std::int64_t p = 0; p < 24; p += 4)
    ASSERT_EQ(cache.feed(1, slice(tokens, 0, p), slice(tokens, p, p + 4)), Status::ok);
  EXPECT_EQ(cache.rollback(1, 4), Status::invalid_argument);
  EXPECT_THAT(cache.error(), HasSubstr("cannot take back 4 rows, the depth is 3"));
  ASSERT_EQ(cache.rollback(1, 3), Status::ok) << cache.error();
  cache.step({1});
  EXPECT_TRUE(cache.wrong_rows(0, 21 - 7, 21, tokens, 0).empty());
  // The ring of 14 rows holds positions 10..23. 17 rows need 10.., 16 rows would need 9.
  EXPECT_EQ(cache.rollback(1, 3), Status::ok) << cache.error();
  EXPECT_EQ(cache.rollback(1, 1), Status::ok) << cache.error();
  EXPECT_EQ(cache.rollback(1, 1), Status::invalid_argument);
  EXPECT_THAT(cache.error(), HasSubstr("position 9 is needed then, positions before 10 are overwritten"));
}

TEST(Ring, RefusesWhatItCannotServeWithTheReason) {
  const auto reasons = [](const OptionValues& options, const abi::KvProblem& problem) {
    Text text;
    EXPECT_EQ(load_policy("ring", "f32", options)->supports(problem, text.sink()), 0u);
    return text.lines;
  };
  EXPECT_THAT(reasons({}, make_problem(0, 1, 64, 4)), HasSubstr("this group of layers is global"));
  const std::string rows = reasons({{"rows", 7}}, make_problem(8, 1, 64, 4));
  EXPECT_THAT(rows, HasSubstr("rows = 7 is less than 8"));
  EXPECT_THAT(rows, HasSubstr("window 8"));
  EXPECT_THAT(reasons({{"rows", 9}, {"slack", 2}}, make_problem(8, 1, 64, 4)), HasSubstr("rows = 9 is less than 10"));
}

TEST(Ring, IsNeverLongerThanTheContext) {
  Cache cache = ring(0, 1024, 64, 100);
  EXPECT_EQ(cache.plan().layout.block_rows, 100u);
  EXPECT_EQ(cache.plan().max_chunk, 64);
  Cache fixed = ring(512, 1024, 64, 100);  // every row stays, so the window does not matter
  EXPECT_EQ(fixed.plan().layout.block_rows, 100u);
  EXPECT_EQ(fixed.plan().max_chunk, 100);
}

TEST(Static, TakesBackAnyNumberOfRows) {
  Cache cache(load_policy("static", "bf16", {}), make_problem(8, 2, 64, 16));
  EXPECT_EQ(cache.plan().rollback_depth, 64);
  EXPECT_EQ(cache.plan().prefix_reuse, 0u);
  const Tokens tokens = some_tokens(48);
  ASSERT_EQ(cache.open(1), Status::ok);
  for (std::int64_t p = 0; p < 48; p += 16)
    ASSERT_EQ(cache.feed(1, slice(tokens, 0, p), slice(tokens, p, p + 16)), Status::ok);
  ASSERT_EQ(cache.rollback(1, 30), Status::ok) << cache.error();
  cache.step({1});
  EXPECT_TRUE(cache.wrong_rows(0, 0, 18, tokens, 0).empty());
  ASSERT_EQ(cache.rollback(1, 18), Status::ok);
  EXPECT_EQ(cache.usage().bytes_used, 0u);
  EXPECT_EQ(cache.open(2, tokens, 16), Status::invalid_argument) << "nothing is kept for reuse";
}

// Rings, slots and tables of different lengths side by side, wrapped and not.
class Mixed : public testing::TestWithParam<const char*> {};

TEST_P(Mixed, LengthsDoNotDisturbEachOther) {
  const std::string name = GetParam();
  const OptionValues options = name == "paged" ? OptionValues{{"block_tokens", 4}} : OptionValues{};
  Cache cache(load_policy(name, "i8", options), make_problem(8, 3, 64, 1));
  std::map<std::uint64_t, Tokens> all;
  std::map<std::uint64_t, std::int64_t> length;
  const auto start = [&](std::uint64_t id, std::int64_t prompt) {
    all[id] = some_tokens(64, static_cast<std::int32_t>(id));
    length[id] = 0;
    ASSERT_EQ(cache.open(id), Status::ok) << cache.error();
    for (; length[id] < prompt; ++length[id])
      ASSERT_EQ(cache.feed(id, slice(all[id], 0, length[id]), slice(all[id], length[id], length[id] + 1)), Status::ok);
  };
  const auto decode = [&](const std::vector<std::uint64_t>& ids) {
    for (const std::uint64_t id : ids) ASSERT_EQ(cache.reserve(id, 1), Status::ok) << cache.error();
    cache.step(ids);
    for (std::size_t i = 0; i < ids.size(); ++i)
      cache.write(static_cast<std::int64_t>(i), length[ids[i]], length[ids[i]] + 1, all[ids[i]], 0);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      // The query at position n sees n - 7 .. n.
      const std::int64_t query = length[ids[i]];
      ASSERT_TRUE(
          cache
              .wrong_rows(static_cast<std::int64_t>(i), std::max<std::int64_t>(0, query - 7), query + 1, all[ids[i]], 0)
              .empty())
          << "sequence " << ids[i] << " at " << query;
    }
    for (const std::uint64_t id : ids) {
      ASSERT_EQ(cache.commit(id, slice(all[id], length[id], length[id] + 1)), Status::ok);
      ++length[id];
    }
  };
  start(1, 3);   // sees 0..3 first
  start(2, 21);  // wrapped: sees 14..21 first
  start(3, 8);   // exactly full: sees 1..8 first
  for (int i = 0; i < 5; ++i) decode({1, 2, 3});
  cache.close(1);
  start(4, 1);
  for (int i = 0; i < 5; ++i) decode({4, 3, 2});
  // A call that fails leaves the others able to go on.
  EXPECT_EQ(cache.begin_step({2, 1}), Status::invalid_argument);
  EXPECT_THAT(cache.error(), HasSubstr("sequence 1 is not open"));
  decode({3, 4, 2});
}

INSTANTIATE_TEST_SUITE_P(Policies, Mixed, testing::Values("static", "ring", "paged"));

}  // namespace
}  // namespace facet::kvtest
