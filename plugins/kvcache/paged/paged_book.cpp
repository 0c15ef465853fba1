#include "paged/paged_book.h"

namespace facet::kvcache {

using abi::Status;
using sdk::fail;

std::int64_t PagedRules::oldest_row(std::int64_t length) const {
  return sdk::window_begin(std::max<std::int64_t>(0, length - rollback), window);
}

std::int64_t PagedRules::blocks_with(std::int64_t new_rows) const {
  const std::int64_t all = table_stride();
  if (window == 0) return all;
  // The first query of a chunk sees window - 1 older rows. Rows in a row touch one block more when they start inside
  // one: span rows lie in at most ceil((span - 1) / block) + 1 blocks.
  const std::int64_t span = window - 1 + rollback + new_rows;
  return std::min(all, sdk::ceil_div(span - 1, block_tokens) + 1);
}

std::int64_t PagedRules::blocks_for_all() const {
  const std::int64_t each = max_sequences * blocks_with(max_chunk);
  if (window == 0) return each;
  // New rows count once, whoever they belong to: s sequences with n_1 to n_s of them, at most max_step_tokens together,
  // hold at most sum(ceil((old + n_i) / block) + 1) <= s * (ceil(old / block) + 2) + max_step_tokens / block blocks.
  const std::int64_t old = std::max<std::int64_t>(0, window - 2 + rollback);
  return std::min(each, max_sequences * (sdk::ceil_div(old, block_tokens) + 2) + max_step_tokens / block_tokens);
}

std::uint64_t PagedRules::host_bytes() const {
  const auto bytes = [](std::int64_t count, std::size_t size) { return static_cast<std::uint64_t>(count) * size; };
  // Per block: its entry and its place in the free list. Per sequence: the table row, the list of blocks, its node.
  std::uint64_t total = sizeof(PagedBook) + bytes(block_count, 32 + sizeof(std::int32_t));
  total += bytes(max_sequences * table_stride(), 2 * sizeof(std::int32_t)) + bytes(max_sequences, 256);
  if (!prefix_reuse) return total;
  // Tokens not yet published, in a vector that may have grown to twice what it holds.
  total += bytes(max_sequences * (rollback + block_tokens + max_chunk), 2 * sizeof(std::int32_t));
  return total + bytes(node_limit() + 1, PrefixIndex::node_bytes(block_tokens));
}

PagedBook::PagedBook(const PagedRules& rules, PrefixIndex::Hash hash)
    : rules_(rules),
      pool_(rules.block_count, rules.block_tokens),
      index_(hash),
      table_(static_cast<std::size_t>(rules.max_sequences * rules.table_stride()), -1) {
  sequences_.reserve(static_cast<std::size_t>(rules.max_sequences));
}

PagedBook::Sequence& PagedBook::find(std::uint64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) fail(Status::invalid_argument, "sequence ", sequence, " is not open");
  return found->second;
}

PagedBook::Tokens PagedBook::block_of(Tokens tokens, std::int64_t block) const {
  return tokens.subspan(static_cast<std::size_t>(block * rules_.block_tokens),
                        static_cast<std::size_t>(rules_.block_tokens));
}

std::int64_t PagedBook::match(Tokens tokens, std::uint64_t salt, std::int64_t limit) const {
  if (!rules_.prefix_reuse) return 0;
  const std::int64_t most = std::min({limit, static_cast<std::int64_t>(tokens.size()), rules_.max_context});
  std::int64_t best = 0;
  std::int64_t present = 0;  // blocks in a row, up to this one, that are in the pool
  PrefixIndex::Node node = PrefixIndex::kRoot;
  for (std::int64_t block = 0; (block + 1) * rules_.block_tokens <= most; ++block) {
    node = index_.find(node, block_of(tokens, block), salt);
    if (node == PrefixIndex::kNone) break;
    present = index_.block(node) >= 0 ? present + 1 : 0;
    const std::int64_t length = (block + 1) * rules_.block_tokens;
    if (block + 1 - present <= rules_.oldest_row(length) / rules_.block_tokens) best = length;
  }
  return best;
}

void PagedBook::open(std::uint64_t sequence, Tokens reused, std::uint64_t salt) {
  const auto length = static_cast<std::int64_t>(reused.size());
  if (sequences_.count(sequence) != 0) fail(Status::invalid_argument, "sequence ", sequence, " is open already");
  if (sequence_count() >= rules_.max_sequences)
    fail(Status::out_of_memory, "sequence ", sequence, " is one too many, ", rules_.max_sequences, " are open");
  if (length > rules_.max_context)
    fail(Status::invalid_argument, "sequence ", sequence, " reuses ", length, " tokens, max_context is ",
         rules_.max_context);
  if (length % rules_.block_tokens != 0 || (length > 0 && !rules_.prefix_reuse))
    fail(Status::invalid_argument, "sequence ", sequence, " reuses ", length,
         rules_.prefix_reuse ? " tokens, not a multiple of block_tokens "
                             : " tokens with prefix_reuse off, block_tokens ",
         rules_.block_tokens);

  Sequence entry;
  entry.salt = salt;
  entry.committed = length;
  entry.published = length / rules_.block_tokens;
  entry.first = rules_.oldest_row(length) / rules_.block_tokens;
  entry.blocks.reserve(static_cast<std::size_t>(rules_.table_stride()));
  entry.blocks.assign(static_cast<std::size_t>(entry.published), -1);
  for (std::int64_t block = 0; block < entry.published; ++block) {
    entry.node = index_.find(entry.node, block_of(reused, block), salt);
    const std::int32_t held = entry.node == PrefixIndex::kNone ? -1 : index_.block(entry.node);
    if (entry.node == PrefixIndex::kNone || (block >= entry.first && held < 0))
      fail(Status::invalid_argument, "sequence ", sequence, " reuses ", length, " tokens, but tokens ",
           block * rules_.block_tokens, " to ", (block + 1) * rules_.block_tokens - 1,
           " are not in the cache: reuse must be a value of match() since the last change");
    if (block >= entry.first) entry.blocks[static_cast<std::size_t>(block)] = held;
  }
  // moved vectors keep their capacity; from here on nothing can fail.
  const Sequence& opened = sequences_.emplace(sequence, std::move(entry)).first->second;
  for (const std::int32_t block : opened.blocks)
    if (block >= 0) pool_.retain(block);
  index_.pin(opened.node);
  reused_tokens_ += length;
}

void PagedBook::reserve(std::uint64_t sequence, std::int64_t count) {
  Sequence& entry = find(sequence);
  if (count < 0 || count > rules_.max_chunk)
    fail(Status::invalid_argument, "sequence ", sequence, " wants ", count, " rows in one step, at most ",
         rules_.max_chunk, " are planned");
  if (entry.committed + count > rules_.max_context)
    fail(Status::invalid_argument, "sequence ", sequence, " holds ", entry.committed, " rows and wants ", count,
         " more, max_context is ", rules_.max_context);
  const auto have = static_cast<std::int64_t>(entry.blocks.size());
  const std::int64_t need = sdk::ceil_div(entry.committed + count, rules_.block_tokens) - have;
  // What the sequence took at open() is held by now, so the cached blocks left are all free for the taking.
  if (need > pool_.free_count() + pool_.cached_count())
    fail(Status::out_of_memory, "sequence ", sequence, " needs ", need, " blocks, ", pool_.free_count(), " free and ",
         pool_.cached_count(), " cached of ", pool_.total());
  for (std::int64_t i = 0; i < need; ++i) {
    const BlockPool::Taken taken = pool_.take();
    if (taken.evicted_node != BlockPool::kNoNode) index_.clear_block(taken.evicted_node);
    entry.blocks.push_back(taken.block);
  }
  entry.reserved = std::max(entry.reserved, count);
}

// Gives back blocks that hold no committed row.
void PagedBook::trim(Sequence& sequence) {
  const auto keep = static_cast<std::size_t>(sdk::ceil_div(sequence.committed, rules_.block_tokens));
  while (sequence.blocks.size() > keep) {
    pool_.release(sequence.blocks.back());
    sequence.blocks.pop_back();
  }
}

void PagedBook::cancel(std::uint64_t sequence) {
  Sequence& entry = find(sequence);
  entry.reserved = 0;
  trim(entry);
}

void PagedBook::fix_tables(std::span<const std::uint64_t> sequences) {
  ++step_;
  for (const std::uint64_t sequence : sequences) {
    Sequence& entry = find(sequence);
    if (entry.step == step_) fail(Status::invalid_argument, "sequence ", sequence, " is named twice in one step");
    entry.step = step_;
  }
  const std::int64_t stride = rules_.table_stride();
  std::int32_t* row = table_.data();
  for (const std::uint64_t sequence : sequences) {
    const std::vector<std::int32_t>& blocks = find(sequence).blocks;
    std::fill(std::copy(blocks.begin(), blocks.end(), row), row + stride, -1);
    row += stride;
  }
}

void PagedBook::add_rows(const Sequence& sequence, std::int64_t begin, std::int64_t end, std::int64_t sign) {
  while (begin < end) {
    const std::int64_t block = begin / rules_.block_tokens;
    const std::int64_t stop = std::min(end, (block + 1) * rules_.block_tokens);
    pool_.add_rows(sequence.blocks[static_cast<std::size_t>(block)], sign * (stop - begin));
    begin = stop;
  }
}

void PagedBook::commit(std::uint64_t sequence, Tokens tokens) {
  Sequence& entry = find(sequence);
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count > entry.reserved)
    fail(Status::invalid_argument, "sequence ", sequence, " commits ", count, " rows, reserved are ", entry.reserved);
  if (rules_.prefix_reuse) entry.pending.insert(entry.pending.end(), tokens.begin(), tokens.end());
  add_rows(entry, entry.committed, entry.committed + count, 1);
  entry.committed += count;
  entry.reserved -= count;
  publish(entry, entry.committed - rules_.rollback);
  drop_old(entry);
}

// Makes the full blocks that end at or before row `end` visible to match(). Reuse is a favour: without host memory for
// the index the rest waits for the next commit.
void PagedBook::publish(Sequence& sequence, std::int64_t end) {
  if (!rules_.prefix_reuse) return;
  std::int64_t done = 0;
  try {
    while ((sequence.published + 1) * rules_.block_tokens <= end) {
      const PrefixIndex::Node node = index_.add(sequence.node, block_of(sequence.pending, done), sequence.salt);
      const std::int32_t block = sequence.blocks[static_cast<std::size_t>(sequence.published)];
      // Another sequence may have committed the same tokens first; then this block stays private and unnamed.
      if (index_.block(node) < 0 && block >= 0) {
        index_.set_block(node, block);
        pool_.name(block, node);
      }
      index_.pin(node);
      index_.unpin(sequence.node);
      sequence.node = node;
      ++sequence.published;
      ++done;
    }
  } catch (const std::bad_alloc&) {
  }
  const auto published = static_cast<std::ptrdiff_t>(done * rules_.block_tokens);
  sequence.pending.erase(sequence.pending.begin(), sequence.pending.begin() + published);
  bound_index();
}

void PagedBook::bound_index() {
  while (index_.size() > rules_.node_limit() && pool_.cached_count() > 0) index_.clear_block(pool_.evict());
}

// Gives up blocks wholly out of the window, even after a rollback; they may stay cached.
void PagedBook::drop_old(Sequence& sequence) {
  const std::int64_t oldest = rules_.oldest_row(sequence.committed);
  while ((sequence.first + 1) * rules_.block_tokens <= oldest) {
    std::int32_t& block = sequence.blocks[static_cast<std::size_t>(sequence.first)];
    pool_.release(block);
    block = -1;
    ++sequence.first;
  }
}

void PagedBook::rollback(std::uint64_t sequence, std::int64_t count) {
  Sequence& entry = find(sequence);
  if (count < 0 || count > entry.committed)
    fail(Status::invalid_argument, "sequence ", sequence, " cannot take back ", count, " rows, it holds ",
         entry.committed);
  if (count > rules_.rollback_depth())
    fail(Status::invalid_argument, "sequence ", sequence, " cannot take back ", count, " rows, the depth is ",
         rules_.rollback_depth());
  const std::int64_t length = entry.committed - count;
  const std::int64_t shared = entry.published * rules_.block_tokens;
  if (length < shared)
    fail(Status::invalid_argument, "sequence ", sequence, " cannot go back to ", length, " rows: the first ", shared,
         " are offered for reuse or came from it");
  const std::int64_t needed = sdk::window_begin(length, rules_.window);
  if (needed < entry.first * rules_.block_tokens)
    fail(Status::invalid_argument, "sequence ", sequence, " cannot go back to ", length, " rows: position ", needed,
         " is needed then, positions before ", entry.first * rules_.block_tokens, " are given up");
  add_rows(entry, length, entry.committed, -1);
  if (rules_.prefix_reuse) entry.pending.resize(static_cast<std::size_t>(length - shared));
  entry.committed = length;
  entry.reserved = 0;
  trim(entry);
}

void PagedBook::close(std::uint64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  Sequence& entry = found->second;
  entry.reserved = 0;
  trim(entry);
  publish(entry, entry.committed);  // no rollback can come any more
  // Last block first: when room is needed, the end of a prefix goes before its beginning.
  for (auto block = entry.blocks.rbegin(); block != entry.blocks.rend(); ++block)
    if (*block >= 0) pool_.release(*block);
  index_.unpin(entry.node);
  sequences_.erase(found);
  bound_index();
}

}  // namespace facet::kvcache
