#include "paged/block_pool.h"

#include "facet/sdk/kv_cache.h"

namespace facet::kvcache {

BlockPool::BlockPool(std::int64_t blocks, std::int64_t block_rows)
    : blocks_(static_cast<std::size_t>(blocks)), free_(static_cast<std::size_t>(blocks)), block_rows_(block_rows) {
  // Taken from the back: block 0 first.
  for (std::int64_t i = 0; i < blocks; ++i)
    free_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(blocks - 1 - i);
}

BlockPool::Taken BlockPool::take() {
  Taken taken{-1, kNoNode};
  if (free_.empty()) taken.evicted_node = evict();
  if (free_.empty()) sdk::fail(abi::Status::failed, "a block is taken while none of ", total(), " is free or cached");
  taken.block = free_.back();
  free_.pop_back();
  at(taken.block).references = 1;
  return taken;
}

std::int64_t BlockPool::evict() {
  if (oldest_ < 0) return kNoNode;
  const std::int32_t block = oldest_;
  unlink(block);
  const std::int64_t node = at(block).node;
  at(block).node = kNoNode;
  at(block).rows = 0;
  free_.push_back(block);
  ++evicted_;
  return node;
}

void BlockPool::retain(std::int32_t block) {
  Block& entry = at(block);
  if (entry.references == 0) {
    unlink(block);
    used_rows_ += entry.rows;
  }
  ++entry.references;
}

void BlockPool::release(std::int32_t block) {
  Block& entry = at(block);
  if (entry.references <= 0) sdk::fail(abi::Status::failed, "block ", block, " is released without a reference");
  if (--entry.references > 0) return;
  used_rows_ -= entry.rows;
  if (entry.node != kNoNode) {
    link_newest(block);
  } else {
    entry.rows = 0;
    free_.push_back(block);
  }
}

void BlockPool::name(std::int32_t block, std::int64_t node) {
  at(block).node = node;
}

void BlockPool::add_rows(std::int32_t block, std::int64_t rows) {
  Block& entry = at(block);
  const std::int64_t filled = entry.rows + rows;
  if (entry.references <= 0 || filled < 0 || filled > block_rows_)
    sdk::fail(abi::Status::failed, "block ", block, " with ", entry.references, " references would hold ", filled,
              " of ", block_rows_, " rows");
  entry.rows = static_cast<std::int32_t>(filled);
  used_rows_ += rows;
}

void BlockPool::link_newest(std::int32_t block) {
  Block& entry = at(block);
  entry.older = newest_;
  entry.newer = -1;
  (newest_ >= 0 ? at(newest_).newer : oldest_) = block;
  newest_ = block;
  ++cached_;
}

void BlockPool::unlink(std::int32_t block) {
  Block& entry = at(block);
  (entry.older >= 0 ? at(entry.older).newer : oldest_) = entry.newer;
  (entry.newer >= 0 ? at(entry.newer).older : newest_) = entry.older;
  entry.older = -1;
  entry.newer = -1;
  --cached_;
}

}  // namespace facet::kvcache
