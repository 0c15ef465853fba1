#include "paged/prefix_index.h"

#include <algorithm>

namespace facet::kvcache {

std::uint64_t PrefixIndex::default_hash(Node parent, Tokens tokens, std::uint64_t salt) {
  // Each word goes through the finalizer of splitmix64, so neighbouring tokens do not cancel as in a polynomial.
  std::uint64_t state = salt ^ 0x9e3779b97f4a7c15u;
  const auto mix = [&](std::uint64_t word) {
    state = (state ^ word) + 0x9e3779b97f4a7c15u;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
    state ^= state >> 31;
  };
  mix(static_cast<std::uint64_t>(parent));
  for (const std::int32_t token : tokens) mix(static_cast<std::uint32_t>(token));
  return state;
}

PrefixIndex::Node PrefixIndex::find_hashed(std::uint64_t hash, Node parent, Tokens tokens, std::uint64_t salt) const {
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto candidate = begin; candidate != end; ++candidate) {
    const Entry& entry = entries_.at(candidate->second);
    if (entry.parent == parent && entry.salt == salt &&
        std::equal(entry.tokens.begin(), entry.tokens.end(), tokens.begin(), tokens.end())) {
      return candidate->second;
    }
  }
  return kNone;
}

PrefixIndex::Node PrefixIndex::find(Node parent, Tokens tokens, std::uint64_t salt) const {
  return find_hashed(hash_(parent, tokens, salt), parent, tokens, salt);
}

PrefixIndex::Node PrefixIndex::add(Node parent, Tokens tokens, std::uint64_t salt) {
  const std::uint64_t hash = hash_(parent, tokens, salt);
  const Node found = find_hashed(hash, parent, tokens, salt);
  if (found != kNone) return found;
  const Node node = next_;
  const auto named = by_hash_.emplace(hash, node);
  try {
    entries_.emplace(node, Entry{parent, salt, hash, {tokens.begin(), tokens.end()}, -1, 0, 0});
  } catch (...) {
    by_hash_.erase(named);
    throw;
  }
  ++next_;
  if (parent != kRoot) ++entries_.at(parent).children;
  return node;
}

std::int32_t PrefixIndex::block(Node node) const {
  return node == kRoot ? -1 : entries_.at(node).block;
}

void PrefixIndex::set_block(Node node, std::int32_t block) {
  entries_.at(node).block = block;
}

void PrefixIndex::clear_block(Node node) {
  entries_.at(node).block = -1;
  prune(node);
}

void PrefixIndex::pin(Node node) {
  if (node != kRoot) ++entries_.at(node).pins;
}

void PrefixIndex::unpin(Node node) {
  if (node == kRoot) return;
  --entries_.at(node).pins;
  prune(node);
}

void PrefixIndex::prune(Node node) {
  while (node != kRoot) {
    const auto found = entries_.find(node);
    const Entry& entry = found->second;
    if (entry.block >= 0 || entry.children > 0 || entry.pins > 0) return;
    const auto [begin, end] = by_hash_.equal_range(entry.hash);
    by_hash_.erase(std::find_if(begin, end, [&](const auto& named) { return named.second == node; }));
    const Node parent = entry.parent;
    entries_.erase(found);
    if (parent != kRoot) --entries_.at(parent).children;
    node = parent;
  }
}

std::uint64_t PrefixIndex::node_bytes(std::int64_t block_tokens) {
  // Two map nodes with their link, hash and bucket, and the allocator's header for three allocations.
  constexpr std::uint64_t kOverhead = 2 * 4 * sizeof(void*) + 3 * 2 * sizeof(void*);
  return sizeof(Entry) + kOverhead + static_cast<std::uint64_t>(block_tokens) * sizeof(std::int32_t);
}

}  // namespace facet::kvcache
