// The whole bookkeeping of the paged policy, without memory: sequences, their block tables, sharing and giving up.
#pragma once

#include "facet/sdk/kv_cache.h"
#include "paged/block_pool.h"
#include "paged/prefix_index.h"

namespace facet::kvcache {

struct PagedRules {
  std::int64_t block_tokens = 0;
  std::int64_t block_count = 0;
  std::int64_t window = 0;    // 0: every row is needed for ever
  std::int64_t rollback = 0;  // rows that stay, and stay private, so that they can be taken back
  std::int64_t max_sequences = 0;
  std::int64_t max_context = 0;
  std::int64_t max_chunk = 0;
  std::int64_t max_step_tokens = 0;
  bool prefix_reuse = false;

  std::int64_t table_stride() const { return sdk::ceil_div(max_context, block_tokens); }
  // Blocks that one sequence holds at once, at most, in a step that gives it so many new rows.
  std::int64_t blocks_with(std::int64_t new_rows) const;
  // Blocks that all sequences hold at once, at most.
  std::int64_t blocks_for_all() const;
  // Position of the oldest row that a sequence of `length` rows needs, after a rollback too.
  std::int64_t oldest_row(std::int64_t length) const;
  std::int64_t rollback_depth() const { return prefix_reuse || window > 0 ? rollback : max_context; }
  // The index is kept below it by giving up cached blocks: room for the content of all live sequences twice.
  std::int64_t node_limit() const { return prefix_reuse ? 2 * max_sequences * table_stride() + block_count : 0; }
  std::uint64_t host_bytes() const;
};

class PagedBook {
 public:
  using Tokens = PrefixIndex::Tokens;

  explicit PagedBook(const PagedRules& rules, PrefixIndex::Hash hash = &PrefixIndex::default_hash);

  // Longest reusable prefix, a multiple of block_tokens, at most `limit`.
  std::int64_t match(Tokens tokens, std::uint64_t salt, std::int64_t limit) const;
  // All of them throw sdk::Failure and then have changed nothing.
  void open(std::uint64_t sequence, Tokens reused, std::uint64_t salt);
  void reserve(std::uint64_t sequence, std::int64_t count);
  void cancel(std::uint64_t sequence);
  void fix_tables(std::span<const std::uint64_t> sequences);
  void commit(std::uint64_t sequence, Tokens tokens);
  // A reservation that is still open is given back too.
  void rollback(std::uint64_t sequence, std::int64_t count);
  void close(std::uint64_t sequence);

  const std::int32_t* table() const { return table_.data(); }
  const PagedRules& rules() const { return rules_; }
  const BlockPool& pool() const { return pool_; }
  const PrefixIndex& index() const { return index_; }
  std::int64_t sequence_count() const { return static_cast<std::int64_t>(sequences_.size()); }
  std::int64_t reused_tokens() const { return reused_tokens_; }

 private:
  struct Sequence {
    std::uint64_t salt = 0;
    PrefixIndex::Node node = PrefixIndex::kRoot;  // content of blocks [0, published); pinned
    std::int64_t published = 0;                   // full blocks that the index knows, never written again
    std::int64_t first = 0;                       // blocks below it are given up
    std::int64_t committed = 0;
    std::int64_t reserved = 0;          // rows after the committed ones
    std::vector<std::int32_t> blocks;   // block of rows [i * block_tokens, ...); -1 below `first`
    std::vector<std::int32_t> pending;  // tokens of rows [published * block_tokens, committed)
    std::uint64_t step = 0;             // last fix_tables() that named it
  };

  Sequence& find(std::uint64_t sequence);
  Tokens block_of(Tokens tokens, std::int64_t block) const;
  void add_rows(const Sequence& sequence, std::int64_t begin, std::int64_t end, std::int64_t sign);
  void trim(Sequence& sequence);
  void publish(Sequence& sequence, std::int64_t end);
  void drop_old(Sequence& sequence);
  void bound_index();

  PagedRules rules_;
  BlockPool pool_;
  PrefixIndex index_;
  std::unordered_map<std::uint64_t, Sequence> sequences_;
  std::vector<std::int32_t> table_;  // [max_sequences, table_stride]
  std::uint64_t step_ = 0;
  std::int64_t reused_tokens_ = 0;
};

}  // namespace facet::kvcache
