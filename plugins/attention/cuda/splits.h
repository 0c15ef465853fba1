// How a decode step splits the keys of its sequences over blocks. Host arithmetic, so that a replayed graph agrees.
#pragma once

#include "attention/cuda/params.h"

namespace facet::attention::cuda {

struct SplitRequest {
  std::int64_t sequences;
  std::int64_t kv_heads;
  std::int64_t seen;            // keys of a sequence, at most
  std::int64_t row_bytes;       // of a key and its value
  std::int64_t sum_bytes;       // of the sums of a step's packed rows that a cluster leaves
  std::int64_t processors;      // of the device
  std::int64_t most_parts;      // of clusters that the workspace holds
  std::int64_t split_keys;      // a split has at least so many keys
  std::int64_t cluster_blocks;  // a cluster has at most so many blocks
};

struct Splits {
  std::int64_t count;    // blocks of a (sequence, KV head), whole clusters
  std::int64_t cluster;  // blocks of a cluster
  // No more than a block has tiles: what is left of the shared memory serves other blocks and the next kernel's first
  // weights.
  std::int64_t stages;
};

// Minimises rounds of blocks times what a processor reads in one, with start and combination counted as bytes that
// could be read meanwhile.
Splits choose_splits(const SplitRequest& request, const DecodeLimits& limits);

}  // namespace facet::attention::cuda
