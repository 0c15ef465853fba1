// Where everything lies in the pool of one group: for each layer keys, values (in the shared form one after the other
// in each row), key scales, value scales.
#pragma once

#include "facet/sdk/kv_cache.h"

namespace facet::kvcache {

// Notes every reason why no policy can serve `problem`: sizes below 1, positions past int32, and so on.
void check_problem(const abi::KvProblem& problem, sdk::Reasons& reasons);

// Notes a reason when `blocks` blocks of `block_rows` rows pass what 63-bit offsets or int32 block numbers can name.
// Call only after check_problem() found nothing.
void check_pool(const abi::KvProblem& problem, abi::DType element, std::int64_t blocks, std::int64_t block_rows,
                sdk::Reasons& reasons);

class PoolShape {
 public:
  PoolShape() = default;
  // Sizes must have passed check_pool().
  PoolShape(const abi::KvProblem& problem, const abi::KvLayout& layout, std::int64_t blocks);

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(layers_ * layer_bytes_); }
  // One block of every layer with its padding: keys, values and scales. blocks * block_bytes() == bytes().
  std::uint64_t block_bytes() const { return static_cast<std::uint64_t>(layers_ * (layer_bytes_ / blocks_)); }
  // What one token occupies in all layers: codes and scales, without padding.
  std::uint64_t row_bytes() const;
  std::int64_t blocks() const { return blocks_; }

  // Throws invalid_argument when the pool is null, too small or not aligned.
  void check_memory(const abi::Memory& pool) const;
  // Everything of the view except the block table. Throws invalid_argument for a layer outside [0, layer_count).
  void fill(const abi::Memory& pool, std::int64_t layer, std::int64_t ring_rows, abi::KvView& view) const;

 private:
  abi::KvLayout layout_{};
  sdk::KvStrides strides_{};
  std::int64_t layers_ = 0;
  std::int64_t kv_heads_ = 0;
  std::int64_t head_dim_ = 0;
  std::int64_t key_channels_ = 0;
  std::int64_t blocks_ = 1;
  std::int64_t codes_bytes_ = 0;   // keys of one layer, values take the same; in the shared form of both
  std::int64_t scales_bytes_ = 0;  // key scales of one layer; value scales take the same
  std::int64_t layer_bytes_ = 0;
};

}  // namespace facet::kvcache
