// The paged policy behind the plugin interface, with the hash of its index open to tests.
#pragma once

#include <optional>

#include "common/pool_shape.h"
#include "paged/paged_book.h"

namespace facet::kvcache {

struct PagedSettings {
  abi::DType element = abi::DType::bf16;
  std::int64_t block_tokens = 16;
  std::int64_t pool_tokens = 0;  // 0: enough for all sequences at their longest
  std::int64_t rollback = 0;
  bool prefix_reuse = true;
};

class PagedCache : public sdk::KvCacheBase {
 public:
  explicit PagedCache(const PagedSettings& settings, PrefixIndex::Hash hash = &PrefixIndex::default_hash)
      : settings_(settings), hash_(hash) {}

  bool stores_shared_form() const override { return true; }
  void check(const abi::KvProblem& problem, sdk::Reasons& reasons) const override;
  std::vector<abi::KvLayout> offer(const abi::KvProblem& problem) const override;
  void make_plan(const abi::KvProblem& problem, const abi::KvLayout& layout, abi::KvPlan& plan) override;
  void start(abi::Memory pool) override;
  std::int64_t find_prefix(Tokens tokens, std::uint64_t salt, std::int64_t limit) const override;
  void open_sequence(std::uint64_t sequence, Tokens reused, std::uint64_t salt) override;
  void reserve_rows(std::uint64_t sequence, std::int64_t count) override;
  void cancel_rows(std::uint64_t sequence) override;
  void fix_tables(std::span<const std::uint64_t> sequences) override;
  void fill_view(std::int64_t layer, abi::KvView& view) override;
  void commit_rows(std::uint64_t sequence, Tokens tokens) override;
  void take_back(std::uint64_t sequence, std::int64_t count) override;
  void close_sequence(std::uint64_t sequence) override;
  void report(abi::KvUsage& usage) const override;

 private:
  PagedRules rules(const abi::KvProblem& problem) const;
  PagedBook& book();

  PagedSettings settings_;
  PrefixIndex::Hash hash_;
  PagedRules planned_rules_;  // by the last plan()
  PoolShape planned_shape_;
  PoolShape shape_;  // by bind()
  std::optional<PagedBook> book_;
  abi::Memory pool_{};
};

}  // namespace facet::kvcache
