// The choice of splits on the host: within the bounds of the device, the workspace and the options, for any step.
#include "attention/cuda/splits.h"

#include <gtest/gtest.h>

#include <random>

namespace facet::attention::cuda {
namespace {

// About an H200: 132 processors, fewer blocks at once in larger clusters and with more stages.
DecodeLimits limits() {
  DecodeLimits made{};
  made.stage_keys = 64;
  for (int size = 0; size < kClusterSizes; ++size) {
    made.stages[size] = 3;
    for (int stages = 0; stages < 3; ++stages) {
      made.blocks_at_once[stages][size] = (stages == 0 ? 264 : 132) >> size << size;
    }
  }
  return made;
}

SplitRequest request(std::int64_t sequences, std::int64_t seen) {
  return {sequences, 8, seen, 1024, 2, 2, 256, 132, 512, 32, 16};
}

TEST(Splits, StayWithinTheirBounds) {
  const std::uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t group = pick(1, 16);
    const SplitRequest asked{pick(1, 300),
                             pick(1, 16),
                             pick(0, 100000),
                             1024 * pick(1, 2),
                             group,
                             group,
                             256,
                             132,
                             pick(0, 600),
                             16 * pick(1, 8),
                             std::int64_t{1} << pick(0, 4)};
    const Splits splits = choose_splits(asked, limits());
    SCOPED_TRACE("seed " + std::to_string(seed) + " round " + std::to_string(round));
    EXPECT_LE(splits.cluster, asked.cluster_blocks);
    EXPECT_EQ(splits.count % splits.cluster, 0);
    EXPECT_LE(splits.count / splits.cluster, kMaxClusters);
    EXPECT_GE(splits.stages, 1);
    EXPECT_LE(splits.stages, 3);
    if (splits.count > 1) {
      EXPECT_GE(asked.seen / splits.count, asked.split_keys - 1);
    }
    if (splits.count > splits.cluster) {
      EXPECT_LE((asked.sequences * asked.kv_heads << splits.head_shift) * (splits.count / splits.cluster),
                asked.most_parts);
    }
    EXPECT_EQ(group >> splits.head_shift << splits.head_shift, group);
  }
}

TEST(Splits, FillTheDeviceWithOneSequenceAndLeaveManyWhole) {
  const Splits one = choose_splits(request(1, 32768), limits());
  EXPECT_GE(one.count * 8, 120);
  const Splits many = choose_splits(request(64, 1024), limits());
  EXPECT_LE(many.count, 2);
}

// Eight sequences with one KV head of 16 queries of 512 columns: the sums of many small clusters would be half a
// megabyte for one block to read.
TEST(Splits, FewLargeClustersWhereSumsAreLarge) {
  const SplitRequest asked{8, 1, 1536, 2048, 16, 1, 512, 132, 512, 32, 16};
  const Splits splits = choose_splits(asked, limits());
  EXPECT_EQ(splits.count, splits.cluster);
  EXPECT_GE(splits.count, 8);
  EXPECT_GE(choose_splits({1, 1, 32768, 2048, 16, 16, 512, 132, 512, 32, 16}, limits()).count, 100);
}

// The 16 query heads of one KV head are more rows than a block makes quickly, and most of the device is idle.
TEST(Splits, ShareQueryHeadsOfOneSequenceOnly) {
  EXPECT_GT(choose_splits({1, 1, 1536, 2048, 16, 16, 512, 132, 512, 32, 16}, limits()).head_shift, 0);
  EXPECT_EQ(choose_splits({1, 1, 1536, 2048, 16, 1, 512, 132, 512, 32, 16}, limits()).head_shift, 0);
  EXPECT_EQ(choose_splits({8, 1, 1024, 2048, 16, 16, 512, 132, 512, 32, 16}, limits()).head_shift, 0);
}

TEST(Splits, SkipClustersThatTheDeviceCannotPlace) {
  DecodeLimits none = limits();
  for (int size = 3; size < kClusterSizes; ++size) none.stages[size] = 0;
  EXPECT_LE(choose_splits(request(1, 32768), none).cluster, 4);
}

}  // namespace
}  // namespace facet::attention::cuda
