// Sharing, pinning, giving up and finding again, through the plugin as the host loads it.
#include <gmock/gmock.h>

#include <set>

#include "harness.h"

namespace facet::kvtest {
namespace {

using abi::Status;
using testing::HasSubstr;

Cache paged(std::int64_t block_tokens, std::int64_t pool_blocks, std::int64_t window = 0,
            std::int64_t max_context = 128, std::int64_t max_chunk = 128) {
  return Cache(
      load_policy("paged", "bf16", {{"block_tokens", block_tokens}, {"pool_tokens", pool_blocks * block_tokens}}),
      make_problem(window, 6, max_context, max_chunk));
}

// Opens with what match() finds for a whole prompt and computes the rest; returns the reused tokens.
std::int64_t run_prompt(Cache& cache, std::uint64_t sequence, const Tokens& prompt, std::uint64_t salt = 0) {
  const std::int64_t reuse = cache.match(prompt, static_cast<std::int64_t>(prompt.size()) - 1, salt);
  EXPECT_EQ(cache.open(sequence, prompt, reuse, salt), Status::ok) << cache.error();
  EXPECT_EQ(cache.feed(sequence, slice(prompt, 0, reuse),
                       slice(prompt, reuse, static_cast<std::int64_t>(prompt.size())), salt),
            Status::ok)
      << cache.error();
  return reuse;
}

std::set<std::int32_t> blocks(Cache& cache, std::uint64_t sequence) {
  std::set<std::int32_t> all;
  for (const std::int32_t block : cache.table(sequence))
    if (block >= 0) all.insert(block);
  return all;
}

TEST(Paged, OwnAllocationDoesNotEvictMatchedBlocks) {
  Cache cache = paged(4, 4);
  const Tokens first = some_tokens(8);
  run_prompt(cache, 1, first);
  const std::set<std::int32_t> matched = blocks(cache, 1);
  cache.close(1);
  EXPECT_EQ(cache.usage().blocks_cached, 2);
  const Tokens longer = joined(first, some_tokens(5, 2));
  EXPECT_EQ(run_prompt(cache, 2, longer), 8);
  EXPECT_EQ(blocks(cache, 2).size(), 4u);
  for (const std::int32_t block : matched) EXPECT_EQ(blocks(cache, 2).count(block), 1u);
  cache.step({2});
  EXPECT_TRUE(cache.wrong_rows(0, 0, 13, longer, 0).empty());
  EXPECT_EQ(cache.usage().evicted_blocks, 0u);
}

TEST(Paged, MatchedIdleBlocksAreNotCountedAsRoom) {
  Cache cache = paged(4, 6);
  const Tokens first = some_tokens(8);
  run_prompt(cache, 1, first);
  cache.close(1);
  run_prompt(cache, 2, some_tokens(8, 3));
  const Tokens longer = joined(first, some_tokens(9, 2));
  ASSERT_EQ(cache.match(longer, 16), 8);
  ASSERT_EQ(cache.open(3, longer, 8), Status::ok);
  const abi::KvUsage before = cache.usage();
  const std::vector<std::int32_t> table = cache.table(3);
  EXPECT_EQ(cache.reserve(3, 9), Status::out_of_memory);
  EXPECT_THAT(cache.error(), HasSubstr("needs 3 blocks, 2 free and 0 cached of 6"));
  const abi::KvUsage after = cache.usage();
  EXPECT_EQ(after.blocks_free, before.blocks_free);
  EXPECT_EQ(after.bytes_reserved, before.bytes_reserved);
  EXPECT_EQ(after.evicted_blocks, 0u);
  EXPECT_EQ(cache.table(3), table);
  cache.close(2);  // the other ends: now it fits
  ASSERT_EQ(cache.feed(3, first, slice(longer, 8, 17)), Status::ok) << cache.error();
  cache.step({3});
  EXPECT_TRUE(cache.wrong_rows(0, 0, 17, longer, 0).empty());
}

TEST(Paged, BlocksPinnedByOthersAreNotCountedTwice) {
  Cache cache = paged(4, 5);
  const Tokens first = some_tokens(8);
  run_prompt(cache, 1, first);
  const Tokens longer = joined(first, some_tokens(9, 2));
  ASSERT_EQ(cache.match(longer, 16), 8);
  ASSERT_EQ(cache.open(2, longer, 8), Status::ok);
  EXPECT_EQ(cache.usage().blocks_free, 3);
  ASSERT_EQ(cache.feed(2, first, slice(longer, 8, 17)), Status::ok) << cache.error();
  EXPECT_EQ(cache.usage().blocks_free, 0);
  EXPECT_EQ(cache.table(1)[0], cache.table(2)[0]);
  EXPECT_EQ(cache.table(1)[1], cache.table(2)[1]);
}

TEST(Paged, RowsAreFoundOnlyAfterCommit) {
  Cache cache = paged(16, 32);
  const Tokens prefix = some_tokens(64);
  std::set<std::int32_t> all;
  for (std::uint64_t id = 1; id <= 4; ++id) {
    const Tokens prompt = joined(prefix, some_tokens(5, static_cast<std::int32_t>(id) + 1));
    EXPECT_EQ(cache.match(prompt, 68), 0) << "unwritten rows were found";
    ASSERT_EQ(cache.open(id, prompt, 0), Status::ok);
    ASSERT_EQ(cache.reserve(id, 69), Status::ok);
    const std::set<std::int32_t> own = blocks(cache, id);
    EXPECT_EQ(own.size(), 5u);
    all.insert(own.begin(), own.end());
  }
  EXPECT_EQ(all.size(), 20u) << "requests of one step share a block";
  for (std::uint64_t id = 1; id <= 4; ++id) {
    const Tokens prompt = joined(prefix, some_tokens(5, static_cast<std::int32_t>(id) + 1));
    cache.step({id});
    cache.write(0, 0, 69, prompt, 0);
    ASSERT_EQ(cache.commit(id, prompt), Status::ok);
  }
  EXPECT_EQ(cache.match(prefix, 64), 64);
  EXPECT_EQ(cache.match(prefix, 63), 48);
  // Only the first of four equal copies is offered; the other three are free when their owners end.
  for (std::uint64_t id = 1; id <= 4; ++id) cache.close(id);
  EXPECT_EQ(cache.usage().blocks_cached, 4);
  EXPECT_EQ(cache.usage().blocks_free, 28);
}

TEST(Paged, HalfFilledBlocksAreNeverShared) {
  Cache cache = paged(16, 16);
  const Tokens prompt = some_tokens(40);
  Tokens one = prompt;
  Tokens two = prompt;
  run_prompt(cache, 1, prompt);
  EXPECT_EQ(run_prompt(cache, 2, prompt), 32);
  std::set<std::int32_t> all = blocks(cache, 1);
  for (const std::int32_t block : blocks(cache, 2)) all.insert(block);
  EXPECT_EQ(all.size(), 4u);
  EXPECT_EQ(cache.usage().bytes_used, 48u * 2 * 2 * 2 * 3 * 2) << "32 shared rows once, 8 of each tail";
  for (std::int32_t i = 0; i < 30; ++i) {
    if (i <= 10) {
      ASSERT_EQ(cache.feed(1, one, {100 + i}), Status::ok);
      one.push_back(100 + i);
    }
    if (i == 10) {
      cache.close(1);  // the donor goes first
      ASSERT_EQ(cache.usage().blocks_cached, 1) << "the donor's third block, full by now; the shared ones stay held";
    }
    ASSERT_EQ(cache.feed(2, two, {200 + i}), Status::ok);
    two.push_back(200 + i);
    cache.step({2});
    ASSERT_TRUE(cache.wrong_rows(0, 0, static_cast<std::int64_t>(two.size()), two, 0).empty());
  }
  cache.close(2);
  EXPECT_EQ(cache.usage().sequences, 0);
  EXPECT_EQ(cache.usage().bytes_reserved, 0u);
  EXPECT_EQ(cache.usage().blocks_free + cache.usage().blocks_cached, 16);
}

TEST(Paged, SaltAndParentAreCompared) {
  Cache cache = paged(4, 16);
  const Tokens a = some_tokens(4, 1);
  const Tokens b = some_tokens(4, 2);
  const Tokens c = some_tokens(4, 3);
  run_prompt(cache, 1, joined(a, b), 7);
  EXPECT_EQ(cache.match(joined(a, b), 8, 7), 8);
  EXPECT_EQ(cache.match(joined(a, b), 8, 8), 0) << "another salt";
  EXPECT_EQ(cache.match(joined(c, b), 8, 7), 0) << "the same block under another parent";
  EXPECT_EQ(cache.match(b, 4, 7), 0);
  EXPECT_EQ(cache.match(joined(a, c), 8, 7), 4);
}

TEST(Paged, SamePromptThreeTimesLeavesATokenToCompute) {
  for (const std::int64_t length : {1, 15, 16, 17, 31, 32, 33}) {
    SCOPED_TRACE("prompt " + std::to_string(length));
    Cache cache = paged(16, 16);
    const Tokens prompt = some_tokens(length);
    for (std::uint64_t round = 1; round <= 3; ++round) {
      EXPECT_EQ(run_prompt(cache, round, prompt), round == 1 ? 0 : (length - 1) / 16 * 16);
      EXPECT_EQ(cache.usage().bytes_used, static_cast<std::uint64_t>(length) * 2 * 2 * 2 * 3 * 2);
      EXPECT_EQ(static_cast<std::int64_t>(blocks(cache, round).size()), (length + 15) / 16);
      EXPECT_EQ(cache.rollback(round, length + 1), Status::invalid_argument) << "more rows than the prompt has";
      cache.step({round});
      EXPECT_TRUE(cache.wrong_rows(0, 0, length, prompt, 0).empty());
      cache.close(round);
    }
  }
}

TEST(Paged, ExactFitIsLegalAndOneRowMoreIsNot) {
  Cache cache = paged(16, 4);
  EXPECT_EQ(cache.plan().max_sequence_tokens, 64);
  EXPECT_EQ(cache.plan().block_count, 4);
  ASSERT_EQ(cache.open(1), Status::ok);
  ASSERT_EQ(cache.feed(1, {}, some_tokens(49)), Status::ok);
  EXPECT_EQ(cache.reserve(1, 14), Status::ok);
  EXPECT_EQ(cache.reserve(1, 15), Status::ok) << "64 rows fit exactly";
  EXPECT_EQ(cache.reserve(1, 16), Status::out_of_memory);
  EXPECT_THAT(cache.error(), HasSubstr("needs 1 blocks, 0 free and 0 cached of 4"));
}

TEST(Paged, WindowGivesUpOldBlocks) {
  // 64 - 1 older rows and a chunk of 32 lie in at most ceil(94 / 16) + 1 = 7 blocks.
  Cache cache(load_policy("paged", "f32", {{"block_tokens", 16}}), make_problem(64, 1, 4096, 32));
  EXPECT_EQ(cache.plan().block_count, 7);
  EXPECT_EQ(cache.plan().max_sequence_tokens, 4096);
  const Tokens tokens = some_tokens(1000);
  ASSERT_EQ(cache.open(1), Status::ok);
  for (std::int64_t begin = 0; begin < 1000;) {
    const std::int64_t end = std::min<std::int64_t>(1000, begin + 1 + begin % 32);
    ASSERT_EQ(cache.feed(1, slice(tokens, 0, begin), slice(tokens, begin, end)), Status::ok) << cache.error();
    begin = end;
    cache.step({1});
    ASSERT_TRUE(cache.wrong_rows(0, sdk::window_begin(begin, 64), begin, tokens, 0).empty());
  }
  const std::vector<std::int32_t> table = cache.table(1);
  EXPECT_EQ(table.size(), 256u);
  // The next query at 1000 sees 937..: block 58 starts at 928.
  for (std::size_t block = 0; block < 58; ++block) EXPECT_EQ(table[block], -1);
  for (std::size_t block = 58; block < 63; ++block) EXPECT_GE(table[block], 0);
  EXPECT_EQ(table[63], -1);
}

TEST(Paged, WindowNeedsOnlyTheLastBlocksOfAPrefix) {
  // 6 blocks of 4 for prompts of 32: only the last ones survive, and they are enough for window 7.
  Cache cache = paged(4, 6, 7, 64, 4);
  const Tokens prompt = some_tokens(32);
  ASSERT_EQ(cache.open(1), Status::ok);
  for (std::int64_t p = 0; p < 32; p += 4)
    ASSERT_EQ(cache.feed(1, slice(prompt, 0, p), slice(prompt, p, p + 4)), Status::ok);
  cache.close(1);
  EXPECT_EQ(cache.usage().evicted_blocks, 2u);
  EXPECT_EQ(cache.usage().blocks_cached, 6);
  EXPECT_EQ(cache.match(prompt, 32), 32);
  EXPECT_EQ(cache.match(prompt, 15), 0) << "12 tokens would need rows 6.., the block of 4..7 is gone";
  EXPECT_EQ(cache.match(prompt, 19), 16) << "16 tokens need rows 10..15, blocks 2 and 3";
  ASSERT_EQ(cache.open(2, prompt, 32), Status::ok) << cache.error();
  // Rows 26..31: two blocks are held, the others stay cached.
  EXPECT_EQ(blocks(cache, 2).size(), 2u);
  EXPECT_EQ(cache.usage().blocks_cached, 4);
  cache.step({2});
  EXPECT_TRUE(cache.wrong_rows(0, 26, 32, prompt, 0).empty());
  EXPECT_EQ(cache.open(3, prompt, 12), Status::invalid_argument);
  EXPECT_THAT(cache.error(), HasSubstr("tokens 4 to 7 are not in the cache"));
  EXPECT_EQ(cache.open(3, prompt, 10), Status::invalid_argument);
  EXPECT_THAT(cache.error(), HasSubstr("10 tokens, not a multiple of block_tokens 4"));
}

TEST(Paged, RollbackKeepsRowsPrivateUntilTheyAreSafe) {
  Cache cache(load_policy("paged", "f32", {{"block_tokens", 4}, {"rollback", 3}}), make_problem(0, 2, 64, 16));
  EXPECT_EQ(cache.plan().rollback_depth, 3);
  const Tokens tokens = some_tokens(16);
  ASSERT_EQ(cache.open(1), Status::ok);
  ASSERT_EQ(cache.feed(1, {}, slice(tokens, 0, 10)), Status::ok);
  EXPECT_EQ(cache.match(tokens, 16), 4) << "rows 7.. may still be taken back";
  EXPECT_EQ(cache.rollback(1, 4), Status::invalid_argument);
  ASSERT_EQ(cache.rollback(1, 3), Status::ok) << cache.error();
  EXPECT_EQ(blocks(cache, 1).size(), 2u) << "the third block is given back";
  EXPECT_EQ(cache.rollback(1, 3), Status::ok) << cache.error();
  EXPECT_EQ(cache.rollback(1, 1), Status::invalid_argument);
  EXPECT_THAT(cache.error(), HasSubstr("the first 4 are offered for reuse"));
  const Tokens other = joined(slice(tokens, 0, 4), some_tokens(4, 9));
  ASSERT_EQ(cache.feed(1, slice(tokens, 0, 4), slice(other, 4, 8)), Status::ok);
  cache.close(1);
  EXPECT_EQ(cache.match(tokens, 16), 4) << "what was taken back was never offered";
  EXPECT_EQ(cache.match(other, 8), 8) << "an ended sequence offers all its full blocks";
}

TEST(Paged, ReuseCanBeOff) {
  Cache cache(load_policy("paged", "f32", {{"block_tokens", 4}, {"prefix_reuse", 0}}), make_problem(0, 2, 64, 16));
  EXPECT_EQ(cache.plan().prefix_reuse, 0u);
  EXPECT_EQ(cache.plan().rollback_depth, 64);
  const Tokens tokens = some_tokens(16);
  ASSERT_EQ(run_prompt(cache, 1, tokens), 0);
  ASSERT_EQ(run_prompt(cache, 2, tokens), 0);
  EXPECT_EQ(cache.rollback(2, 15), Status::ok) << cache.error();
  cache.close(1);
  cache.close(2);
  EXPECT_EQ(cache.usage().blocks_free, cache.usage().blocks_total);
}

}  // namespace
}  // namespace facet::kvtest
