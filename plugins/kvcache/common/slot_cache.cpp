#include "common/slot_cache.h"

#include "common/storage.h"

namespace facet::kvcache {

using abi::Status;
using sdk::fail;

void SlotCache::check(const abi::KvProblem& problem, sdk::Reasons& reasons) const {
  check_problem(problem, reasons);
  if (!reasons.ok()) return;
  check_policy(problem, reasons);
  if (!reasons.ok()) return;
  check_pool(problem, element_, problem.max_sequences, rules(problem).rows, reasons);
}

std::vector<abi::KvLayout> SlotCache::offer(const abi::KvProblem& problem) const {
  sdk::require_supported([&](sdk::Reasons& reasons) { check(problem, reasons); });
  const SlotRules rule = rules(problem);
  return storage_layouts(rule.addressing, element_, static_cast<std::uint32_t>(rule.rows));
}

void SlotCache::make_plan(const abi::KvProblem& problem, const abi::KvLayout& layout, abi::KvPlan& plan) {
  require_offered(layout, offer(problem));
  planned_ = {problem, rules(problem), PoolShape(problem, layout, problem.max_sequences)};
  planned_once_ = true;
  plan.prefix_reuse = 0;
  plan.pool_bytes = planned_.shape.bytes();
  plan.pool_alignment = kAlignment;
  // A table entry, a free slot, and a node of the map with its bucket.
  constexpr std::uint64_t kSequenceBytes = 2 * sizeof(std::int32_t) + sizeof(Sequence) + 8 * sizeof(void*);
  plan.host_bytes = sizeof(SlotCache) + static_cast<std::uint64_t>(problem.max_sequences) * kSequenceBytes;
  plan.block_count = problem.max_sequences;
  plan.sequence_blocks = 1;
  plan.max_sequence_tokens = problem.max_context;
  plan.max_chunk = planned_.rules.max_chunk;
  plan.rollback_depth = planned_.rules.rollback_depth;
}

void SlotCache::start(abi::Memory pool) {
  if (!planned_once_) fail(Status::invalid_argument, "bind() before plan()");
  if (is_bound_) fail(Status::invalid_argument, "bind() a second time");
  planned_.shape.check_memory(pool);
  bound_ = planned_;
  pool_ = pool;
  const auto count = static_cast<std::size_t>(bound_.problem.max_sequences);
  sequences_.reserve(count);
  table_.reserve(count);
  free_slots_.resize(count);
  // Taken from the back: slot 0 first.
  for (std::size_t i = 0; i < count; ++i) free_slots_[i] = static_cast<std::int32_t>(count - 1 - i);
  is_bound_ = true;
}

void SlotCache::open_sequence(std::uint64_t sequence, Tokens reused, std::uint64_t /*salt*/) {
  if (!is_bound_) fail(Status::invalid_argument, "open() before bind()");
  if (!reused.empty())
    fail(Status::invalid_argument, "open() of sequence ", sequence, " wants to reuse ", reused.size(),
         " tokens; this policy keeps nothing for reuse");
  if (sequences_.count(sequence) != 0) fail(Status::invalid_argument, "sequence ", sequence, " is open already");
  if (free_slots_.empty())
    fail(Status::out_of_memory, "sequence ", sequence, " needs a slot, all ", bound_.problem.max_sequences,
         " are taken");
  sequences_.emplace(sequence, Sequence{free_slots_.back(), 0, 0, 0, 0});
  free_slots_.pop_back();
}

SlotCache::Sequence& SlotCache::find(std::uint64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) fail(Status::invalid_argument, "sequence ", sequence, " is not open");
  return found->second;
}

void SlotCache::reserve_rows(std::uint64_t sequence, std::int64_t count) {
  Sequence& entry = find(sequence);
  if (count < 0 || count > bound_.rules.max_chunk)
    fail(Status::invalid_argument, "sequence ", sequence, " wants ", count, " rows in one step, at most ",
         bound_.rules.max_chunk, " fit (slot of ", bound_.rules.rows, " rows, window ", bound_.problem.window, ")");
  if (entry.committed + count > bound_.problem.max_context)
    fail(Status::invalid_argument, "sequence ", sequence, " holds ", entry.committed, " rows and wants ", count,
         " more, max_context is ", bound_.problem.max_context);
  entry.reserved = std::max(entry.reserved, count);
  entry.written_end = std::max(entry.written_end, entry.committed + entry.reserved);
}

void SlotCache::cancel_rows(std::uint64_t sequence) {
  find(sequence).reserved = 0;
}

void SlotCache::fix_tables(std::span<const std::uint64_t> sequences) {
  ++step_;
  for (const std::uint64_t sequence : sequences) {
    Sequence& entry = find(sequence);
    if (entry.step == step_) fail(Status::invalid_argument, "sequence ", sequence, " is named twice in one step");
    entry.step = step_;
  }
  table_.clear();
  for (const std::uint64_t sequence : sequences) table_.push_back(find(sequence).slot);
}

void SlotCache::fill_view(std::int64_t layer, abi::KvView& view) {
  if (!is_bound_) fail(Status::invalid_argument, "view() before bind()");
  const bool is_ring = bound_.rules.addressing == abi::KvAddressing::ring;
  bound_.shape.fill(pool_, layer, is_ring ? bound_.rules.rows : 0, view);
  view.block_table = table_.data();
  view.table_stride = 1;
}

void SlotCache::commit_rows(std::uint64_t sequence, Tokens tokens) {
  Sequence& entry = find(sequence);
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count > entry.reserved)
    fail(Status::invalid_argument, "sequence ", sequence, " commits ", count, " rows, reserved are ", entry.reserved);
  entry.committed += count;
  entry.reserved -= count;
}

std::int64_t SlotCache::first_resident(const Sequence& sequence) const {
  return std::max<std::int64_t>(0, sequence.written_end - bound_.rules.rows);
}

void SlotCache::take_back(std::uint64_t sequence, std::int64_t count) {
  Sequence& entry = find(sequence);
  if (count < 0 || count > entry.committed)
    fail(Status::invalid_argument, "sequence ", sequence, " cannot take back ", count, " rows, it holds ",
         entry.committed);
  if (count > bound_.rules.rollback_depth)
    fail(Status::invalid_argument, "sequence ", sequence, " cannot take back ", count, " rows, the depth is ",
         bound_.rules.rollback_depth);
  // One rollback of that depth is always possible; a row of them may reach rows that were overwritten.
  const std::int64_t length = entry.committed - count;
  const std::int64_t needed = sdk::window_begin(length, bound_.problem.window);
  if (needed < first_resident(entry))
    fail(Status::invalid_argument, "sequence ", sequence, " cannot go back to ", length, " rows: position ", needed,
         " is needed then, positions before ", first_resident(entry), " are overwritten");
  entry.committed = length;
  entry.reserved = 0;
}

void SlotCache::close_sequence(std::uint64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  free_slots_.push_back(found->second.slot);
  sequences_.erase(found);
}

void SlotCache::report(abi::KvUsage& usage) const {
  if (!is_bound_) return;
  usage.blocks_total = bound_.problem.max_sequences;
  usage.blocks_free = static_cast<std::int64_t>(free_slots_.size());
  usage.sequences = static_cast<std::int64_t>(sequences_.size());
  usage.bytes_reserved = static_cast<std::uint64_t>(sequences_.size()) * bound_.shape.block_bytes();
  for (const auto& [id, entry] : sequences_) {
    const std::int64_t rows = std::max<std::int64_t>(0, entry.committed - first_resident(entry));
    usage.bytes_used += static_cast<std::uint64_t>(rows) * bound_.shape.row_bytes();
  }
}

}  // namespace facet::kvcache
