#include "facet/engine/kv_manager.h"

#include <algorithm>
#include <limits>

#include "kv_plan_check.h"

namespace facet {

KvManager::KvManager(std::vector<KvGroup> groups, std::int64_t max_sequences)
    : groups_(std::move(groups)), max_sequences_(max_sequences) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    KvGroup& group = groups_[g];
    group.views.resize(group.spec.layers.size());
    for (std::size_t i = 0; i < group.spec.layers.size(); ++i) {
      const auto layer = static_cast<std::size_t>(group.spec.layers[i]);
      if (layer_view_.size() <= layer) layer_view_.resize(layer + 1);
      layer_view_[layer] = {g, i};
    }
  }
}

void KvManager::allocate(Backend& backend) {
  for (KvGroup& group : groups_) {
    group.pool = backend.allocate(group.plan.pool_bytes, group.plan.pool_alignment, kKvTag);
    SinkText text;
    check_call(group.cache->bind(group.plan, group.pool.memory(), text.sink()), group.cache.plugin(),
               "binding its pool", text, ErrorKind::plugin);
  }
}

std::int64_t KvManager::max_chunk() const {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const KvGroup& group : groups_) least = std::min(least, group.plan.max_chunk);
  return least;
}

std::int64_t KvManager::max_sequence_tokens() const {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const KvGroup& group : groups_) least = std::min(least, group.plan.max_sequence_tokens);
  return least;
}

std::int64_t KvManager::sequences_that_fit() const {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const KvGroup& group : groups_) {
    if (group.plan.sequence_blocks > 0) least = std::min(least, group.plan.block_count / group.plan.sequence_blocks);
  }
  return least;
}

bool KvManager::prefix_reuse() const {
  return std::all_of(groups_.begin(), groups_.end(), [](const KvGroup& group) { return group.plan.prefix_reuse != 0; });
}

std::int64_t KvManager::open(std::uint64_t sequence, std::span<const std::int32_t> tokens, std::uint64_t salt,
                             std::int64_t limit) {
  std::int64_t reuse = prefix_reuse() ? std::min<std::int64_t>(limit, static_cast<std::int64_t>(tokens.size())) : 0;
  // A group may hold a shorter prefix, and at that length another may hold an even shorter one (windowed groups need
  // the rows just before the cut), so ask until all agree. Every round but the last is shorter, so this ends.
  for (bool agreed = false; reuse > 0 && !agreed;) {
    agreed = true;
    for (const KvGroup& group : groups_) {
      const std::int64_t found =
          group.cache->match(tokens.data(), static_cast<std::int64_t>(tokens.size()), salt, reuse);
      if (found < reuse) {
        reuse = std::max<std::int64_t>(found, 0);
        agreed = false;
      }
    }
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    SinkText text;
    const abi::Status status = groups_[g].cache->open(sequence, tokens.data(), reuse, salt, text.sink());
    if (status == abi::Status::ok) continue;
    for (std::size_t undo = 0; undo < g; ++undo) groups_[undo].cache->close(sequence);
    check_call(status, groups_[g].cache.plugin(), "opening a sequence", text);
  }
  return reuse;
}

KvResult KvManager::reserve(std::uint64_t sequence, std::int64_t count) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    SinkText text;
    const abi::Status status = groups_[g].cache->reserve(sequence, count, text.sink());
    if (status == abi::Status::ok) continue;
    for (std::size_t undo = 0; undo < g; ++undo) groups_[undo].cache->cancel(sequence);
    if (status == abi::Status::out_of_memory) {
      last_refusal_ =
          fmt::format("{} ({})", describe(groups_[g].cache.plugin()), text.empty() ? "it gave no reason" : text.text());
      return KvResult::no_memory;
    }
    check_call(status, groups_[g].cache.plugin(), "reserving rows", text);
  }
  return KvResult::ok;
}

void KvManager::cancel(std::uint64_t sequence) noexcept {
  for (KvGroup& group : groups_) group.cache->cancel(sequence);
}

void KvManager::begin_step(std::span<const std::uint64_t> sequences) {
  for (KvGroup& group : groups_) {
    const CountedCall counted(group.counter);
    const auto count = static_cast<std::int64_t>(sequences.size());
    SinkText text;
    check_call(group.cache->begin_step(sequences.data(), static_cast<std::int32_t>(sequences.size()), text.sink()),
               group.cache.plugin(), "fixing the tables of a step", text);
    for (std::size_t i = 0; i < group.views.size(); ++i) {
      check_call(group.cache->view(static_cast<std::int64_t>(i), &group.views[i], text.sink()), group.cache.plugin(),
                 "viewing a layer", text);
      const abi::KvView& view = group.views[i];
      check_kv_view(group, view, i, count);
      // All layers share one table (rule 7.11), so it is read once.
      if (i == 0 && count > 0) check_kv_table(group, view, count);
      check_kv_table_shared(group, view, i);
    }
  }
}

const abi::KvView& KvManager::view(std::int32_t layer) const {
  const auto& [group, index] = layer_view_[static_cast<std::size_t>(layer)];
  return groups_[group].views[index];
}

void KvManager::commit(std::uint64_t sequence, std::span<const std::int32_t> tokens) {
  for (KvGroup& group : groups_) {
    SinkText text;
    check_call(group.cache->commit(sequence, tokens.data(), static_cast<std::int64_t>(tokens.size()), text.sink()),
               group.cache.plugin(), "committing rows", text);
  }
}

void KvManager::close(std::uint64_t sequence) noexcept {
  for (KvGroup& group : groups_) group.cache->close(sequence);
}

KvManager::Bytes KvManager::bytes() const {
  Bytes sum;
  for (const abi::KvUsage& usage : usage()) {
    sum.reserved += usage.bytes_reserved;
    sum.used += usage.bytes_used;
  }
  return sum;
}

std::vector<abi::KvUsage> KvManager::usage() const {
  std::vector<abi::KvUsage> all(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) groups_[g].cache->usage(&all[g]);
  return all;
}

}  // namespace facet
