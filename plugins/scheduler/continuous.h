// Continuous batching: every step carries the decoding sequences and, in the tokens that are left, chunks of prompts.
//
// Rank. priority * ageing_steps + steps since the sequence was first seen: one level of priority is worth ageing_steps
// steps of waiting. The difference between two sequences never changes, so only a bounded number of later arrivals can
// ever go before a sequence: nothing starves. `order = "length"` puts shorter prompts first among sequences of the same
// level (rank / ageing_steps, rounded down).
//
// Decode comes first: new sequences start only in tokens that decoding leaves. When the cache is full the sequence of
// the lowest rank loses its rows (it is computed again later), never the one of the highest rank; a sequence that is
// itself the lowest keeps its rows and pauses.
//
// Prefill follows the order. When the prompts need more than the step holds, newcomer_share / (1 + newcomer_share) of
// it goes to the shortest prompts behind the first, so a long prompt keeps nobody out and itself takes at most
// 1 + newcomer_share times as long.
//
// Admission. A full cache teaches how many rows fit. A waiting sequence is admitted only when its rows and kHeadroom
// more tokens of everybody fit in that, or when nothing runs; else a preempted sequence would come straight back and
// be preempted again. The first sequence in order that has to wait for memory makes all others wait.
#pragma once

#include <limits>
#include <unordered_map>
#include <vector>

#include "work.h"

namespace facet::scheduler {

class ContinuousScheduler final : public sdk::SchedulerBase {
 public:
  static constexpr sdk::PluginInfo kInfo = {
      .name = "continuous",
      .version = "0.1.0",
      .summary = "decode every step, chunks of prompts beside it; priorities, ageing, preemption by recomputation",
      .devices = kAllDevices,
      .flags = abi::kDeterministic};
  static constexpr abi::OptionSpec kOptions[] = {
      sdk::choice_option("order", "arrival", kOrders,
                         "which waiting sequences go first: arrival, or length (shortest prompt first)"),
      sdk::integer_option("prefill_tokens", 0, 0, 1 << 30, "tokens",
                          "most prompt tokens in a step, bounds the pause of decoding streams; 0: all the step holds"),
      sdk::integer_option("max_prefill_sequences", 0, 0, 1 << 20, "sequences",
                          "most prompts that are partly computed at the same time; 0: no limit"),
      sdk::real_option("newcomer_share", 0.25, 0, 1, "",
                       "by how much a long prompt may be slowed down in favour of shorter ones behind it"),
      sdk::integer_option("ageing_steps", 256, 1, 1 << 20, "steps",
                          "steps of waiting that count as much as one level of priority"),
  };

  ContinuousScheduler(sdk::Host host, const sdk::OptionReader& options);

  void plan_step(const sdk::Step& step) override;
  void forget(std::uint64_t sequence) override { first_seen_.erase(sequence); }

 private:
  // Tokens kept free for each sequence at admission: two blocks of the usual 16.
  static constexpr std::int64_t kHeadroom = 32;
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

  struct Item {
    const abi::SequenceView* sequence;
    std::int64_t rank;
    bool scheduled = false;
    bool preempted = false;

    bool holds_rows() const { return is_running(*sequence) && !preempted; }
    bool idle() const { return !scheduled && !preempted; }
  };
  // What one step has used so far.
  struct Progress {
    std::int64_t tokens = 0;   // scheduled
    std::int64_t rows = 0;     // in the cache, all sequences
    std::int64_t growth = 0;   // headroom promised to those that run
    std::int64_t running = 0;  // sequences with rows
    std::int64_t partial = 0;  // of these, with a prompt not yet complete
    bool admitting = true;     // no sequence is waiting for memory or a slot
  };

  void take_view(const sdk::Step& step);
  void decode(const sdk::Step& step);
  void prefill(const sdk::Step& step);
  void share_with_short(const sdk::Step& step, const std::vector<Item*>& order, std::int64_t budget,
                        std::int64_t wanted);
  void fill_in_order(const sdk::Step& step, const std::vector<Item*>& order, std::int64_t budget);
  void force_progress(const sdk::Step& step);

  abi::ScheduleResult schedule(const sdk::Step& step, Item& item, std::int64_t tokens, std::int64_t* granted = nullptr);
  bool preempt_below(const sdk::Step& step, const Item& item);
  // May this waiting sequence start now, with `tokens` of its prompt in this step? passed: the waiting sequence that it
  // goes before, out of order; null when there is none.
  bool may_start(const sdk::Step& step, const Item& item, std::int64_t tokens, const Item* passed) const;
  bool fits(const abi::SequenceView& sequence, std::int64_t reserved_rows) const;
  static std::int64_t rows_to_start(const abi::SequenceView& sequence);

  bool by_length_;
  std::int64_t prefill_tokens_;
  std::int64_t max_partial_;
  double newcomer_share_;
  std::int64_t ageing_steps_;

  std::unordered_map<std::uint64_t, std::uint64_t> first_seen_;  // step, of every live sequence
  std::int64_t capacity_ = kUnknown;                             // rows that fit, as far as full caches have shown
  double credit_ = 0;     // tokens owed to short prompts, below one in steady state
  bool starved_ = false;  // in the last step a running prompt met a full cache

  std::vector<Item> items_;  // of the step being built, highest rank first
  Progress progress_;
};

}  // namespace facet::scheduler
