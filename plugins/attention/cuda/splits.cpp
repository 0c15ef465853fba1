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
// A block makes, sends and folds its rows; of a byte of a key, for each element.
constexpr std::int64_t kRowCost = 32;
// Blocks that part the query heads of a KV head read its keys again, which pays for few sequences only (8 with one KV
// head of 512: 27.9 us in halves, 16.2 whole).
constexpr std::int64_t kMostShares = 8;

// `bytes`: of the columns that a block folds, over all clusters.
std::int64_t second_fold_cost(std::int64_t bytes) {
  return kSecondFoldCost + static_cast<std::int64_t>(kSumCost * static_cast<double>(bytes));
}

// How one number of blocks and clusters does for one share of the query heads; nothing when the device or the workspace
// has no place for it.
struct Trial {
  Splits splits;
  std::int64_t cost;
};
Trial attempt(const SplitRequest& request, const DecodeLimits& limits, int size, std::int64_t clusters,
              std::int64_t head_shift) {
  constexpr Trial kNone{{}, std::numeric_limits<std::int64_t>::max()};
  const std::int64_t cluster = std::int64_t{1} << size;
  const std::int64_t count = clusters * cluster;
  const std::int64_t pairs = request.sequences * request.kv_heads << head_shift;
  if (clusters > 1 && pairs * clusters > request.most_parts) return kNone;
  const std::int64_t share = sdk::round_up(sdk::ceil_div(std::max<std::int64_t>(1, request.seen), count), 16);
  const std::int64_t stages = std::min<std::int64_t>(sdk::ceil_div(share, limits.stage_keys), limits.stages[size]);
  const std::int64_t at_once = limits.blocks_at_once[stages - 1][size];
  if (at_once == 0) return kNone;  // the device cannot place such a cluster
  const std::int64_t blocks = pairs * count;
  const std::int64_t elements = (request.rows >> head_shift) * request.head_dim;
  const std::int64_t neighbours = sdk::ceil_div(std::min(blocks, at_once), request.processors);
  const std::int64_t round = neighbours * share * request.row_bytes + kBlockCost + kRowCost * elements;
  const auto sum_bytes = elements * static_cast<std::int64_t>(sizeof(float));
  return {
      {count, cluster, stages, head_shift},
      sdk::ceil_div(blocks, at_once) * round + (clusters > 1 ? second_fold_cost(clusters * sum_bytes / cluster) : 0)};
}

}  // namespace

Splits choose_splits(const SplitRequest& request, const DecodeLimits& limits) {
  const std::int64_t most =
      std::clamp<std::int64_t>(std::max<std::int64_t>(1, request.seen) / request.split_keys, 1, kMostSplits);
  Trial best{{1, 1, 1, 0}, std::numeric_limits<std::int64_t>::max()};
  for (std::int64_t shift = 0; request.group % (std::int64_t{1} << shift) == 0; ++shift) {
    if (shift > 0 && request.sequences * request.kv_heads << shift > kMostShares) break;
    for (int size = kClusterSizes - 1; size >= 0; --size) {
      const std::int64_t cluster = std::int64_t{1} << size;
      if (cluster > request.cluster_blocks || limits.stages[size] == 0) continue;
      for (std::int64_t clusters = 1; clusters <= kMaxClusters && clusters * cluster <= most; ++clusters) {
        const Trial trial = attempt(request, limits, size, clusters, shift);
        if (trial.cost < best.cost) best = trial;
      }
    }
  }
  return best.splits;
}

}  // namespace facet::attention::cuda
