// The cut of 5 to 8 rows by w4a16_stream covers the product and fits the device; needs no device.
#include <gtest/gtest.h>

#include <string>

#include "packed_shape.h"
#include "quant_gptq/cuda/w4a16_stream/wide.h"

namespace facet::test {
namespace {

constexpr int kShared = 227 << 10;  // of a block of compute capability 9.0
// What the devices in tile_test.cpp hold.
constexpr linear::WideDevice kLarge{132, {0, 132, 66, 42, 31}};
constexpr linear::WideDevice kSmall{7, {0, 7, 3, 2, 1}};
constexpr linear::WideDevice kOne{1, {0, 1, 0, 0, 0}};

linear::WideArgs wide_args(std::int64_t out, std::int64_t in, std::int64_t group, bool int8) {
  linear::WideArgs args{};
  args.shape = packed_shape(out, in, group, int8, int8);
  return args;
}

void expect_valid(linear::WideArgs args, const linear::WideDevice& device) {
  const int grid = linear::wide_cut(args, device);
  ASSERT_TRUE(args.k_shift == 0 || args.k_shift == 1);
  const int units = 4 >> args.k_shift;
  const int splits = 1 << args.split_shift;
  ASSERT_LE(splits, units) << "a block that owns less than a unit of a tile";
  EXPECT_GE(args.tiles * units, args.shape.units);
  EXPECT_LT((args.tiles - 1) * units, args.shape.units);
  EXPECT_GE(splits * args.block_chunks, args.shape.chunks);
  EXPECT_LT((splits - 1) * args.block_chunks, args.shape.chunks) << "a block without inputs";
  EXPECT_EQ(grid % splits, 0);
  EXPECT_GE(grid, splits * args.clusters);
  EXPECT_LE(grid, device.multiprocessors);
  if (splits > 1) {  // sums of one tile have a place
    EXPECT_EQ(args.clusters, args.tiles);
    EXPECT_LE(args.clusters, device.clusters[splits]);
    EXPECT_EQ(args.sum_buffers, 1);
  } else {
    EXPECT_EQ(args.sum_buffers, 2);
  }
  const int shared = linear::wide_ring(args, kShared);
  EXPECT_GE(args.stages, linear::kWideMinStages);
  EXPECT_LE(args.stages, linear::kWideMaxStages);
  EXPECT_LE(shared, kShared);
  EXPECT_GT(shared, args.stages * linear::kWideStageChunks * args.shape.chunk_bytes);
}

TEST(CudaWide, CutsCoverTheProductAndFitTheDevice) {
  for (const bool int8 : {false, true}) {
    for (const std::int64_t in : {8, 120, 1025, 3840, 15360, 65536}) {
      for (const std::int64_t out : {1, 31, 515, 3840, 8704, 30720, 262144}) {
        for (const std::int64_t group : {std::int64_t{32}, std::int64_t{64}, std::int64_t{128}, in}) {
          SCOPED_TRACE("in " + std::to_string(in) + ", out " + std::to_string(out) + ", group " +
                       std::to_string(group) + (int8 ? ", int8" : ", int4"));
          for (const linear::WideDevice& device : {kLarge, kSmall, kOne})
            expect_valid(wide_args(out, in, group, int8), device);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(CudaWide, RingsThatDoNotFitAreRefused) {
  linear::WideArgs args = wide_args(3840, 3840, 32, true);
  linear::wide_cut(args, kLarge);
  const int whole = linear::wide_ring(args, kShared);
  const int two = whole - (args.stages - 2) * linear::wide_stage_bytes(args);
  EXPECT_EQ(linear::wide_ring(args, two), two);
  EXPECT_EQ(args.stages, 2);
  EXPECT_EQ(linear::wide_ring(args, two - 1), 0);
}

TEST(CudaWide, UsesTheDevice) {
  // The matrices of the 12B: blocks with work on nine in ten multiprocessors.
  const std::int64_t shapes[][2] = {{8192, 3840}, {3840, 4096}, {30720, 3840}, {3840, 15360}, {3840, 8192}};
  for (const auto& shape : shapes) {
    linear::WideArgs args = wide_args(shape[0], shape[1], 128, false);
    linear::wide_cut(args, kLarge);
    EXPECT_GE(10 * (args.clusters << args.split_shift), 9 * kLarge.multiprocessors) << shape[0] << " x " << shape[1];
  }
}

}  // namespace
}  // namespace facet::test
