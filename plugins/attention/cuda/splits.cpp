#include "attention/cuda/splits.h"

#include <algorithm>
#include <limits>

#include "facet/sdk/numeric.h"

namespace facet::attention::cuda {

namespace {

// A block without keys takes about 5 us, in which a processor reads this much; folding clusters takes half of that, and
// longer the more sums the last one to arrive has to read, which goes slower than keys do.
constexpr std::int64_t kBlockCost = 128 << 10;
constexpr std::int64_t kSecondFoldCost = 64 << 10;
constexpr double kSumCost = 1.5;  // of a byte of a key
constexpr std::int64_t kMostSplits = 256;

// `bytes`: of the columns that a block folds, over all clusters.
std::int64_t second_fold_cost(std::int64_t bytes) {
  return kSecondFoldCost + static_cast<std::int64_t>(kSumCost * static_cast<double>(bytes));
}

}  // namespace

Splits choose_splits(const SplitRequest& request, const DecodeLimits& limits) {
  const std::int64_t seen = std::max<std::int64_t>(1, request.seen);
  const std::int64_t most = std::clamp<std::int64_t>(seen / request.split_keys, 1, kMostSplits);
  Splits best{1, 1, 1};
  std::int64_t best_cost = std::numeric_limits<std::int64_t>::max();
  for (int size = kClusterSizes - 1; size >= 0; --size) {
    const std::int64_t cluster = std::int64_t{1} << size;
    if (cluster > request.cluster_blocks || limits.stages[size] == 0) continue;
    for (std::int64_t clusters = 1; clusters <= kMaxClusters && clusters * cluster <= most; ++clusters) {
      const std::int64_t count = clusters * cluster;
      if (clusters > 1 && request.sequences * request.kv_heads * clusters > request.most_parts) break;
      const std::int64_t share = sdk::round_up(sdk::ceil_div(seen, count), 16);
      const std::int64_t stages = std::min<std::int64_t>(sdk::ceil_div(share, limits.stage_keys), limits.stages[size]);
      const std::int64_t at_once = limits.blocks_at_once[stages - 1][size];
      if (at_once == 0) continue;  // the device cannot place such a cluster
      const std::int64_t blocks = request.sequences * request.kv_heads * count;
      const std::int64_t neighbours = sdk::ceil_div(std::min(blocks, at_once), request.processors);
      const std::int64_t cost = sdk::ceil_div(blocks, at_once) * (neighbours * share * request.row_bytes + kBlockCost) +
                                (clusters > 1 ? second_fold_cost(clusters * request.sum_bytes / cluster) : 0);
      if (cost >= best_cost) continue;
      best = {count, cluster, stages};
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace facet::attention::cuda
