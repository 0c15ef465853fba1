// The block pool, the prefix index and the paged bookkeeping alone, with hashes that collide on purpose.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "harness.h"
#include "paged/paged_book.h"

namespace facet::kvtest {
namespace {

using kvcache::BlockPool;
using kvcache::PagedBook;
using kvcache::PagedRules;
using kvcache::PrefixIndex;

std::uint64_t constant_hash(PrefixIndex::Node, PrefixIndex::Tokens, std::uint64_t) {
  return 42;
}

// The rolling polynomial of the report: neighbouring tokens cancel.
std::uint64_t polynomial_hash(PrefixIndex::Node, PrefixIndex::Tokens tokens, std::uint64_t) {
  std::uint64_t sum = 0;
  std::uint64_t power = 1;
  for (const std::int32_t token : tokens) {
    sum += power * static_cast<std::uint32_t>(token);
    power *= 31;
  }
  return sum;
}

PagedRules small_rules(std::int64_t window = 0) {
  PagedRules rules;
  rules.block_tokens = 4;
  rules.block_count = 12;
  rules.window = window;
  rules.max_sequences = 4;
  rules.max_context = 64;
  rules.max_chunk = 64;
  rules.prefix_reuse = true;
  return rules;
}

void feed(PagedBook& book, std::uint64_t id, const Tokens& tokens) {
  book.reserve(id, static_cast<std::int64_t>(tokens.size()));
  book.commit(id, tokens);
}

TEST(BlockPool, GivesUpTheBlockCachedLongest) {
  BlockPool pool(3, 4);
  for (std::int32_t block = 0; block < 3; ++block) EXPECT_EQ(pool.take().block, block);
  pool.name(0, 10);
  pool.name(1, 11);
  pool.name(2, 12);
  pool.add_rows(1, 4);
  pool.release(1);
  pool.release(0);
  EXPECT_EQ(pool.cached_count(), 2);
  EXPECT_EQ(pool.held_count(), 1);
  EXPECT_EQ(pool.used_rows(), 0);
  pool.retain(1);
  EXPECT_EQ(pool.used_rows(), 4) << "a cached block comes back with its rows";
  pool.release(1);  // now younger than block 0
  const BlockPool::Taken taken = pool.take();
  EXPECT_EQ(taken.block, 0);
  EXPECT_EQ(taken.evicted_node, 10);
  EXPECT_EQ(pool.take().evicted_node, 11);
  EXPECT_EQ(pool.evicted(), 2);
  EXPECT_THROW(pool.take(), sdk::Failure);
  EXPECT_EQ(pool.evict(), BlockPool::kNoNode);
}

TEST(BlockPool, CountsNeverUnderflow) {
  BlockPool pool(2, 4);
  const std::int32_t block = pool.take().block;
  pool.retain(block);
  EXPECT_EQ(pool.references(block), 2);
  pool.release(block);
  pool.release(block);
  EXPECT_EQ(pool.free_count(), 2);
  EXPECT_THROW(pool.release(block), sdk::Failure);
  EXPECT_THROW(pool.add_rows(block, 1), sdk::Failure);
  const std::int32_t again = pool.take().block;
  EXPECT_THROW(pool.add_rows(again, 5), sdk::Failure);
}

TEST(PrefixIndex, CollisionsAreMisses) {
  const Tokens left{5, 40, 7, 7};
  const Tokens right{36, 39, 7, 7};
  ASSERT_EQ(polynomial_hash(0, left, 0), 216509u);
  ASSERT_EQ(polynomial_hash(0, right, 0), 216509u);
  for (const PrefixIndex::Hash hash : {&constant_hash, &polynomial_hash}) {
    PrefixIndex index(hash);
    const PrefixIndex::Node node = index.add(PrefixIndex::kRoot, left, 0);
    index.set_block(node, 3);
    EXPECT_EQ(index.find(PrefixIndex::kRoot, right, 0), PrefixIndex::kNone);
    EXPECT_EQ(index.find(PrefixIndex::kRoot, left, 1), PrefixIndex::kNone);
    EXPECT_EQ(index.find(node, left, 0), PrefixIndex::kNone);
    EXPECT_EQ(index.find(PrefixIndex::kRoot, left, 0), node);
    const PrefixIndex::Node other = index.add(PrefixIndex::kRoot, right, 0);
    EXPECT_NE(other, node);
    index.set_block(other, 4);
    EXPECT_EQ(index.block(index.find(PrefixIndex::kRoot, left, 0)), 3);
    EXPECT_EQ(index.block(index.find(PrefixIndex::kRoot, right, 0)), 4);
  }
}

TEST(PrefixIndex, NodesLiveWhileSomethingNeedsThem) {
  PrefixIndex index;
  const PrefixIndex::Node parent = index.add(PrefixIndex::kRoot, Tokens{1, 2}, 0);
  index.set_block(parent, 0);
  const PrefixIndex::Node child = index.add(parent, Tokens{3, 4}, 0);
  index.pin(child);
  index.clear_block(parent);
  EXPECT_EQ(index.size(), 2) << "the child keeps its parent";
  EXPECT_EQ(index.find(PrefixIndex::kRoot, Tokens{1, 2}, 0), parent);
  EXPECT_EQ(index.block(parent), -1);
  index.unpin(child);
  EXPECT_EQ(index.size(), 0);
  EXPECT_NE(index.add(PrefixIndex::kRoot, Tokens{1, 2}, 0), parent) << "numbers are not used twice";
}

TEST(PagedBook, SharedBlocksHaveTwoReferencesAndTailsOne) {
  PagedRules rules = small_rules();
  rules.block_tokens = 16;
  PagedBook book(rules);
  const Tokens prompt = some_tokens(40);
  book.open(1, {}, 0);
  feed(book, 1, prompt);
  ASSERT_EQ(book.match(prompt, 0, 39), 32);
  book.open(2, slice(prompt, 0, 32), 0);
  feed(book, 2, slice(prompt, 32, 40));
  const std::uint64_t ids[] = {1, 2};
  book.fix_tables(ids);
  const std::int32_t* one = book.table();
  const std::int32_t* two = one + rules.table_stride();
  for (int block = 0; block < 2; ++block) {
    EXPECT_EQ(one[block], two[block]);
    EXPECT_EQ(book.pool().references(one[block]), 2);
  }
  EXPECT_NE(one[2], two[2]);
  EXPECT_EQ(book.pool().references(one[2]), 1);
  EXPECT_EQ(book.pool().references(two[2]), 1);
  EXPECT_EQ(book.pool().held_count(), 4);
  book.close(1);
  EXPECT_EQ(book.pool().references(two[0]), 1);
  book.close(2);
  EXPECT_EQ(book.pool().held_count(), 0);
  EXPECT_EQ(book.pool().cached_count(), 2);
}

TEST(PagedBook, ConstantHashNeverGivesAWrongHit) {
  PagedBook book(small_rules(), &constant_hash);
  book.open(1, {}, 5);
  feed(book, 1, {5, 40, 7, 7, 1, 2, 3, 4});
  EXPECT_EQ(book.match(Tokens{36, 39, 7, 7, 1, 2, 3, 4}, 5, 8), 0);
  EXPECT_EQ(book.match(Tokens{1, 2, 3, 4}, 5, 4), 0);
  EXPECT_EQ(book.match(Tokens{5, 40, 7, 7, 1, 2, 3, 5}, 5, 8), 4);
  EXPECT_EQ(book.match(Tokens{5, 40, 7, 7, 1, 2, 3, 4}, 6, 8), 0);
  EXPECT_EQ(book.match(Tokens{5, 40, 7, 7, 1, 2, 3, 4}, 5, 8), 8);
}

TEST(PagedBook, RecycledBlocksAreNeverTakenForParents) {
  PagedRules rules = small_rules();
  rules.block_count = 4;
  PagedBook book(rules);
  const Tokens first = some_tokens(8, 1);
  const Tokens tail = slice(first, 4, 8);
  book.open(1, {}, 0);
  feed(book, 1, first);
  book.close(1);
  // Everything is evicted, then the block of the old parent holds other tokens.
  book.open(2, {}, 0);
  feed(book, 2, some_tokens(16, 2));
  EXPECT_EQ(book.pool().evicted(), 2);
  EXPECT_EQ(book.match(first, 0, 8), 0);
  EXPECT_EQ(book.match(joined(some_tokens(4, 2), tail), 0, 8), 4);
  book.close(2);
  // The end of a prefix goes before its beginning.
  book.open(3, {}, 0);
  feed(book, 3, some_tokens(4, 3));
  EXPECT_EQ(book.match(some_tokens(16, 2), 0, 16), 12);
}

TEST(PagedBook, ContentComputedAgainMakesItsDescendantsReachable) {
  PagedRules rules = small_rules();
  rules.block_count = 3;
  PagedBook book(rules);
  const Tokens all = some_tokens(8, 1);
  // Sequence 2 holds the second block only as a duplicate's child: the first block belongs to sequence 1.
  book.open(1, {}, 0);
  feed(book, 1, slice(all, 0, 4));
  book.open(2, {}, 0);
  feed(book, 2, all);
  book.close(1);
  EXPECT_EQ(book.pool().cached_count(), 1);
  book.open(3, {}, 0);
  feed(book, 3, some_tokens(4, 7));  // evicts the first block
  EXPECT_EQ(book.match(all, 0, 8), 0);
  book.close(3);
  book.open(4, {}, 0);
  feed(book, 4, slice(all, 0, 4));
  EXPECT_EQ(book.match(all, 0, 8), 8) << "same tokens, same parent, same rows";
}

// Chunks of all sequences together stay within a step: the pool for that is always enough, and far below one in which
// every sequence may hold a chunk at once.
TEST(PagedBook, AStepsWorthOfNewRowsIsAlwaysThere) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int trial = 0; trial < 60; ++trial) {
    PagedRules rules;
    rules.block_tokens = between(1, 9);
    rules.window = between(1, 40);
    rules.rollback = between(0, 3);
    rules.max_sequences = between(1, 8);
    rules.max_context = 400;
    rules.max_chunk = between(1, 60);
    rules.max_step_tokens = rules.max_chunk + between(0, 40);
    rules.prefix_reuse = between(0, 1) == 1;
    rules.block_count = rules.blocks_for_all();
    SCOPED_TRACE(testing::Message() << "block " << rules.block_tokens << ", window " << rules.window << ", chunk "
                                    << rules.max_chunk << ", step " << rules.max_step_tokens);
    PagedBook book(rules);
    std::map<std::uint64_t, std::int64_t> lengths;
    std::uint64_t next = 1;
    for (int step = 0; step < 60; ++step) {
      while (static_cast<std::int64_t>(lengths.size()) < rules.max_sequences) {
        book.open(next, {}, 0);
        lengths[next++] = 0;
      }
      std::int64_t left = rules.max_step_tokens;
      std::map<std::uint64_t, std::int64_t> counts;
      for (const auto& [id, length] : lengths) {
        const std::int64_t most = std::min({left, rules.max_chunk, rules.max_context - length});
        counts[id] = between(std::min<std::int64_t>(1, most), most);
        left -= counts[id];
        if (counts[id] > 0) {
          ASSERT_NO_THROW(book.reserve(id, counts[id]));
        }
      }
      for (const auto& [id, count] : counts) {
        if (count > 0) book.commit(id, some_tokens(count, static_cast<std::int32_t>(id)));
        lengths[id] += count;
        if (lengths[id] < rules.max_context) continue;
        book.close(id);
        lengths.erase(id);
      }
    }
  }
  PagedRules gemma;
  gemma.block_tokens = 64;
  gemma.window = 1024;
  gemma.max_sequences = 64;
  gemma.max_context = 33792;
  gemma.max_chunk = 4096;
  gemma.max_step_tokens = 8192;
  EXPECT_EQ(gemma.blocks_for_all(), 64 * (16 + 2) + 128);
  EXPECT_EQ(gemma.blocks_with(gemma.max_chunk), 81);
  EXPECT_EQ(gemma.blocks_with(1), 17) << "64 of them fit while they decode";
  gemma.max_sequences = 1;
  EXPECT_EQ(gemma.blocks_for_all(), 81) << "never more than all sequences at their longest";
  gemma.window = 0;
  EXPECT_EQ(gemma.blocks_for_all(), 33792 / 64);
}

TEST(PagedBook, IndexStaysBounded) {
  PagedRules rules = small_rules(5);
  rules.max_sequences = 1;
  PagedBook book(rules);
  const std::int64_t limit = rules.node_limit();
  EXPECT_EQ(limit, 2 * 16 + 12);
  for (std::uint64_t id = 1; id <= 40; ++id) {
    const Tokens tokens = some_tokens(64, static_cast<std::int32_t>(id));
    book.open(id, {}, 0);
    for (std::int64_t p = 0; p < 64; p += 4) feed(book, id, slice(tokens, p, p + 4));
    book.close(id);
    EXPECT_LE(book.index().size(), limit) << "after " << id << " sequences";
    EXPECT_EQ(book.match(tokens, 0, 63), 60) << "the newest content is kept";
  }
  EXPECT_EQ(book.pool().held_count(), 0);
}

}  // namespace
}  // namespace facet::kvtest
