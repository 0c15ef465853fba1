// Which block holds the rows of which tokens. A tree: a node is the tokens of one full block after the tokens of its
// parent. Nodes have numbers of their own that are never used twice, so a recycled block is never taken for a parent.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace facet::kvcache {

class PrefixIndex {
 public:
  using Node = std::int64_t;
  using Tokens = std::span<const std::int32_t>;
  // Only finds candidates: parent, salt and tokens are compared, so a bad hash costs time and nothing else.
  using Hash = std::uint64_t (*)(Node parent, Tokens tokens, std::uint64_t salt);

  static constexpr Node kRoot = 0;
  static constexpr Node kNone = -1;

  static std::uint64_t default_hash(Node parent, Tokens tokens, std::uint64_t salt);

  explicit PrefixIndex(Hash hash = &default_hash) : hash_(hash) {}

  // The child of `parent` with exactly these tokens and this salt, or kNone.
  Node find(Node parent, Tokens tokens, std::uint64_t salt) const;
  // The same, made when there is none. A new node has no block and no pin: give it one of them before anything else.
  Node add(Node parent, Tokens tokens, std::uint64_t salt);

  // -1: the content is known but in no block now. A node lives on without a block while it has children or pins,
  // because under a window a prefix is usable without its oldest blocks.
  std::int32_t block(Node node) const;
  void set_block(Node node, std::int32_t block);
  void clear_block(Node node);

  // A pinned node stays: the sequences that stand at it will add children. The root needs no pin.
  void pin(Node node);
  void unpin(Node node);

  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }
  // Bytes of one node with the nodes and buckets of both maps, at most.
  static std::uint64_t node_bytes(std::int64_t block_tokens);

 private:
  struct Entry {
    Node parent;
    std::uint64_t salt;
    std::uint64_t hash;
    std::vector<std::int32_t> tokens;
    std::int32_t block;
    std::int64_t children;
    std::int64_t pins;
  };

  Node find_hashed(std::uint64_t hash, Node parent, Tokens tokens, std::uint64_t salt) const;
  // Removes `node` and then its ancestors as long as nothing needs them.
  void prune(Node node);

  Hash hash_;
  Node next_ = kRoot + 1;
  std::unordered_map<Node, Entry> entries_;
  std::unordered_multimap<std::uint64_t, Node> by_hash_;
};

}  // namespace facet::kvcache
