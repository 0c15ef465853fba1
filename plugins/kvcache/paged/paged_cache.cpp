#include "paged/paged_cache.h"

#include "common/storage.h"

namespace facet::kvcache {

void PagedCache::check(const abi::KvProblem& problem, sdk::Reasons& reasons) const {
  check_problem(problem, reasons);
  if (reasons.ok()) check_pool(problem, settings_.element, rules(problem).block_count, settings_.block_tokens, reasons);
}

std::vector<abi::KvLayout> PagedCache::offer(const abi::KvProblem& problem) const {
  sdk::require_supported([&](sdk::Reasons& reasons) { check(problem, reasons); });
  return storage_layouts(abi::KvAddressing::paged, settings_.element,
                         static_cast<std::uint32_t>(settings_.block_tokens));
}

void PagedCache::make_plan(const abi::KvProblem& problem, const abi::KvLayout& layout, abi::KvPlan& plan) {
  require_offered(layout, offer(problem));
  planned_rules_ = rules(problem);
  planned_shape_ = PoolShape(problem, layout, planned_rules_.block_count);
  plan.prefix_reuse = settings_.prefix_reuse ? 1 : 0;
  plan.pool_bytes = planned_shape_.bytes();
  plan.pool_alignment = kAlignment;
  plan.host_bytes = sizeof(PagedCache) + planned_rules_.host_bytes();
  plan.block_count = planned_rules_.block_count;
  plan.sequence_blocks = planned_rules_.blocks_with(1);
  const bool holds_any = planned_rules_.block_count >= planned_rules_.blocks_with(planned_rules_.max_chunk);
  plan.max_sequence_tokens = holds_any
                                 ? problem.max_context
                                 : std::min(problem.max_context, planned_rules_.block_count * settings_.block_tokens);
  plan.max_chunk = planned_rules_.max_chunk;
  plan.rollback_depth = planned_rules_.rollback_depth();
}

void PagedCache::start(abi::Memory pool) {
  if (planned_rules_.block_count == 0) sdk::fail(abi::Status::invalid_argument, "bind() before plan()");
  if (book_) sdk::fail(abi::Status::invalid_argument, "bind() a second time");
  planned_shape_.check_memory(pool);
  book_.emplace(planned_rules_, hash_);
  shape_ = planned_shape_;
  pool_ = pool;
}

std::int64_t PagedCache::find_prefix(Tokens tokens, std::uint64_t salt, std::int64_t limit) const {
  return book_ ? book_->match(tokens, salt, limit) : 0;
}

void PagedCache::open_sequence(std::uint64_t sequence, Tokens reused, std::uint64_t salt) {
  book().open(sequence, reused, salt);
}

void PagedCache::reserve_rows(std::uint64_t sequence, std::int64_t count) {
  book().reserve(sequence, count);
}
void PagedCache::cancel_rows(std::uint64_t sequence) {
  book().cancel(sequence);
}
void PagedCache::fix_tables(std::span<const std::uint64_t> sequences) {
  book().fix_tables(sequences);
}
void PagedCache::fill_view(std::int64_t layer, abi::KvView& view) {
  view.block_table = book().table();
  view.table_stride = book().rules().table_stride();
  shape_.fill(pool_, layer, 0, view);
}

void PagedCache::commit_rows(std::uint64_t sequence, Tokens tokens) {
  book().commit(sequence, tokens);
}
void PagedCache::take_back(std::uint64_t sequence, std::int64_t count) {
  book().rollback(sequence, count);
}
void PagedCache::close_sequence(std::uint64_t sequence) {
  if (book_) book_->close(sequence);
}

void PagedCache::report(abi::KvUsage& usage) const {
  if (!book_) return;
  const BlockPool& blocks = book_->pool();
  usage.blocks_total = blocks.total();
  usage.blocks_free = blocks.free_count();
  usage.blocks_cached = blocks.cached_count();
  usage.sequences = book_->sequence_count();
  usage.bytes_reserved = static_cast<std::uint64_t>(blocks.held_count()) * shape_.block_bytes();
  usage.bytes_used = static_cast<std::uint64_t>(blocks.used_rows()) * shape_.row_bytes();
  usage.reused_tokens = static_cast<std::uint64_t>(book_->reused_tokens());
  usage.evicted_blocks = static_cast<std::uint64_t>(blocks.evicted());
}

PagedRules PagedCache::rules(const abi::KvProblem& problem) const {
  PagedRules rules;
  rules.block_tokens = settings_.block_tokens;
  rules.window = problem.window;
  rules.rollback = settings_.rollback;
  rules.max_sequences = problem.max_sequences;
  rules.max_context = problem.max_context;
  rules.max_chunk = std::min({problem.max_chunk, problem.max_step_tokens, problem.max_context});
  rules.max_step_tokens = problem.max_step_tokens;
  rules.prefix_reuse = settings_.prefix_reuse;
  rules.block_count =
      settings_.pool_tokens > 0 ? sdk::ceil_div(settings_.pool_tokens, settings_.block_tokens) : rules.blocks_for_all();
  return rules;
}

PagedBook& PagedCache::book() {
  if (!book_) sdk::fail(abi::Status::invalid_argument, "the cache is used before bind()");
  return *book_;
}

}  // namespace facet::kvcache
