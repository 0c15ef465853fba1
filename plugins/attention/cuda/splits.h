// How a decode step splits the keys of its sequences over blocks. Host arithmetic, so that a replayed graph agrees.
#pragma once

#include "attention/cuda/params.h"

namespace facet::attention::cuda {

struct SplitRequest {
  std::int64_t sequences;
  std::int64_t kv_heads;
  std::int64_t seen;       // keys of a sequence, at most
  std::int64_t row_bytes;  // of a key and its value
  std::int64_t rows;       // packed, of a sequence and KV head in this step
  std::int64_t group;      // query heads of a KV head that may be shared out, 1: they may not
  std::int64_t head_dim;
  std::int64_t processors;      // of the device
  std::int64_t most_parts;      // of clusters that the workspace holds
  std::int64_t split_keys;      // a split has at least so many keys
  std::int64_t cluster_blocks;  // a cluster has at most so many blocks
};

struct Splits {
  std::int64_t count;    // blocks that share the keys of a sequence, whole clusters
  std::int64_t cluster;  // blocks of a cluster
  // No more than a block has tiles: what is left of the shared memory serves other blocks and the next kernel's first
  // weights.
  std::int64_t stages;
  std::int64_t head_shift;  // 2^head_shift times as many blocks share the query heads of a KV head; each reads the keys
};

// Minimises rounds of blocks times what a processor reads in one, with start and combination counted as bytes that
// could be read meanwhile.
Splits choose_splits(const SplitRequest& request, const DecodeLimits& limits);

}  // namespace facet::attention::cuda
