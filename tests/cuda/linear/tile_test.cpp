// The cut that w4a16_wgmma chooses covers the product and fits the device; needs no device.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "packed_shape.h"
#include "quant_gptq/cuda/w4a16_wgmma/layout.h"

namespace facet::test {
namespace {

// An H200, whose groups of multiprocessors hold 12 to 18, and a device of one small group.
constexpr linear::TileDevice kLarge{132, {0, 132, 66, 42, 31, 23, 19, 16, 15}};
constexpr linear::TileDevice kSmall{7, {0, 7, 3, 2, 1, 1, 1, 1, 0}};

void expect_valid(const linear::Rows32& shape, int rows, const linear::TileDevice& device) {
  const linear::TileChoice choice = linear::choose_tile(shape, rows, device);
  ASSERT_NE(std::find(std::begin(linear::kTileForms), std::end(linear::kTileForms), choice.form),
            std::end(linear::kTileForms));
  const int columns = choice.form.columns;
  const int units = linear::tile_units(choice.form);
  const int row_tiles = choice.tiles / choice.column_tiles;
  EXPECT_EQ(row_tiles * choice.column_tiles, choice.tiles);
  EXPECT_GE(choice.column_tiles * columns, rows);
  EXPECT_LT((choice.column_tiles - 1) * columns, rows);
  EXPECT_GE(row_tiles * units, shape.units);
  EXPECT_LT((row_tiles - 1) * units, shape.units);
  EXPECT_GE(choice.grid, 1);
  EXPECT_EQ(choice.grid % choice.splits, 0);
  EXPECT_LE(choice.splits, shape.chunks) << "a block without inputs";
  const int fixed = linear::tile_fixed_bytes(choice.form);
  // A block of a cluster has one tile: its ring becomes the memory of its sums. All clusters run at a time.
  if (choice.splits > 1) {
    EXPECT_EQ(choice.grid, choice.tiles * choice.splits);
    EXPECT_LE(choice.tiles, device.clusters[choice.splits]);
    EXPECT_GE(choice.shared_bytes, fixed + linear::tile_partial_bytes(choice.form));
  } else {
    EXPECT_LE(choice.grid, device.multiprocessors);
  }
  EXPECT_GE(choice.stages, 2);
  EXPECT_LE(choice.stages, linear::kMaxStages);
  const int stage = choice.stage_chunks * (columns * linear::kColumnBytes + units * shape.chunk_bytes);
  EXPECT_GE(choice.shared_bytes, fixed + choice.stages * stage);
  EXPECT_LE(choice.shared_bytes, linear::kSharedPerBlock);
}

TEST(CudaTiles, CoverTheProductAndFitTheDevice) {
  for (const bool int8 : {false, true}) {
    for (const std::int64_t in : {8, 120, 1025, 3840, 15360, 40000}) {
      for (const std::int64_t out : {1, 31, 515, 3840, 8704, 30720, 262144}) {
        for (const std::int64_t group : {std::int64_t{32}, std::int64_t{64}, std::int64_t{128}, in}) {
          const linear::Rows32 shape = packed_shape(out, in, group, int8);
          for (const int rows : {1, 5, 8, 9, 17, 33, 64, 65, 100, 129, 500, 1536, 8192}) {
            SCOPED_TRACE("rows " + std::to_string(rows) + ", in " + std::to_string(in) + ", out " +
                         std::to_string(out) + ", group " + std::to_string(group) + (int8 ? ", int8" : ", int4"));
            expect_valid(shape, rows, kLarge);
            expect_valid(shape, rows, kSmall);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(CudaTiles, UseTheDevice) {
  // The matrices of the 12B at decoding sizes: three in four multiprocessors have a share at least.
  const std::int64_t shapes[][2] = {{8192, 3840}, {3840, 4096}, {30720, 3840}, {3840, 15360}, {3840, 8192}};
  for (const auto& [out, in] : shapes) {
    for (const int rows : {5, 8, 16, 32, 64, 128}) {
      const linear::TileChoice choice = linear::choose_tile(packed_shape(out, in, 128, false), rows, kLarge);
      EXPECT_GE(choice.grid, 96) << "rows " << rows << ", in " << in << ", out " << out;
    }
  }
}

}  // namespace
}  // namespace facet::test
