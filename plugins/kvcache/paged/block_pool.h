// Blocks of a pool by number: who is free, who is held and how often, who is kept only for reuse. Knows no tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace facet::kvcache {

// A block is free, held (references > 0) or cached (no reference, but content that a node of the prefix index names).
// free + cached + held == total, always. Nothing allocates after construction.
class BlockPool {
 public:
  static constexpr std::int64_t kNoNode = -1;

  BlockPool(std::int64_t blocks, std::int64_t block_rows);

  std::int64_t total() const { return static_cast<std::int64_t>(blocks_.size()); }
  std::int64_t free_count() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t cached_count() const { return cached_; }
  std::int64_t held_count() const { return total() - free_count() - cached_; }
  std::int64_t references(std::int32_t block) const { return at(block).references; }
  // Rows that hold a token, over all held blocks, each block once.
  std::int64_t used_rows() const { return used_rows_; }
  std::int64_t evicted() const { return evicted_; }

  struct Taken {
    std::int32_t block;
    std::int64_t evicted_node;  // whose content is gone now; kNoNode when the block was free
  };
  // A block with one reference and no rows: a free one, else the one cached longest. Throws failed when there is none.
  Taken take();
  // Gives up the block cached longest and returns its node; kNoNode when none is cached.
  std::int64_t evict();

  void retain(std::int32_t block);
  // Without references left a block with a node stays cached, another one is free. Throws failed below zero.
  void release(std::int32_t block);
  // `node` names the content of this held block from now on.
  void name(std::int32_t block, std::int64_t node);
  // Rows of this held block that hold a token change by `rows`.
  void add_rows(std::int32_t block, std::int64_t rows);

 private:
  struct Block {
    std::int64_t node = kNoNode;
    std::int32_t references = 0;
    std::int32_t rows = 0;
    std::int32_t older = -1;  // neighbours in the order of caching
    std::int32_t newer = -1;
  };

  Block& at(std::int32_t block) { return blocks_[static_cast<std::size_t>(block)]; }
  const Block& at(std::int32_t block) const { return blocks_[static_cast<std::size_t>(block)]; }
  void link_newest(std::int32_t block);
  void unlink(std::int32_t block);

  std::vector<Block> blocks_;
  std::vector<std::int32_t> free_;
  std::int64_t block_rows_;
  std::int64_t cached_ = 0;
  std::int64_t used_rows_ = 0;
  std::int64_t evicted_ = 0;
  std::int32_t oldest_ = -1;
  std::int32_t newest_ = -1;
};

}  // namespace facet::kvcache
