// Policies that give every sequence one fixed slot: static (all rows) and ring (the last rows) differ only in numbers.
#pragma once

#include <unordered_map>

#include "common/pool_shape.h"

namespace facet::kvcache {

// What one slot can do.
struct SlotRules {
  abi::KvAddressing addressing = abi::KvAddressing::none;
  std::int64_t rows = 0;            // of a slot
  std::int64_t max_chunk = 0;       // rows of one reserve()
  std::int64_t rollback_depth = 0;  // rows of one rollback()
};

class SlotCache : public sdk::KvCacheBase {
 public:
  explicit SlotCache(abi::DType element) : element_(element) {}

  bool stores_shared_form() const override { return true; }
  void check(const abi::KvProblem& problem, sdk::Reasons& reasons) const final;
  std::vector<abi::KvLayout> offer(const abi::KvProblem& problem) const final;
  void make_plan(const abi::KvProblem& problem, const abi::KvLayout& layout, abi::KvPlan& plan) final;
  void start(abi::Memory pool) final;
  void open_sequence(std::uint64_t sequence, Tokens reused, std::uint64_t salt) final;
  void reserve_rows(std::uint64_t sequence, std::int64_t count) final;
  void cancel_rows(std::uint64_t sequence) final;
  void fix_tables(std::span<const std::uint64_t> sequences) final;
  void fill_view(std::int64_t layer, abi::KvView& view) final;
  void commit_rows(std::uint64_t sequence, Tokens tokens) final;
  void take_back(std::uint64_t sequence, std::int64_t count) final;
  void close_sequence(std::uint64_t sequence) final;
  void report(abi::KvUsage& usage) const final;

 protected:
  // Reasons of the policy alone; the problem itself is already found sane.
  virtual void check_policy(const abi::KvProblem& problem, sdk::Reasons& reasons) const = 0;
  virtual SlotRules rules(const abi::KvProblem& problem) const = 0;

 private:
  struct Planned {
    abi::KvProblem problem;
    SlotRules rules;
    PoolShape shape;
  };
  struct Sequence {
    std::int32_t slot;
    std::int64_t committed;
    std::int64_t reserved;     // rows after the committed ones
    std::int64_t written_end;  // no position at or above it was ever written
    std::uint64_t step;        // of the last begin_step() that named the sequence
  };

  Sequence& find(std::uint64_t sequence);
  // Positions below it may have been overwritten by later ones.
  std::int64_t first_resident(const Sequence& sequence) const;

  abi::DType element_;
  Planned planned_{};  // by the last plan()
  bool planned_once_ = false;

  Planned bound_{};  // by bind()
  bool is_bound_ = false;
  abi::Memory pool_{};
  std::unordered_map<std::uint64_t, Sequence> sequences_;
  std::vector<std::int32_t> free_slots_;
  std::vector<std::int32_t> table_;  // [sequences of the step, 1]
  std::uint64_t step_ = 0;
};

}  // namespace facet::kvcache
