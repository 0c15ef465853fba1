// The kernels of w4a16_wgmma, with all numbers of columns.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <set>

#include "launch.h"
#include "product_case.h"
#include "quant_gptq/cuda/rows32/pack.h"
#include "quant_gptq/cuda/w4a16_wgmma/layout.h"

namespace facet::test {
namespace {

constexpr std::int64_t kInputs[] = {8, 64, 129, 200, 320, 640, 1000, 1152, 1193};
constexpr std::int64_t kOutputs[] = {1, 33, 64, 100, 255, 256, 300, 515, 640};
constexpr std::int64_t kRows[] = {1, 5, 8, 9, 16, 17, 31, 33, 48, 57, 64, 90, 96, 128, 130, 200};
constexpr std::int64_t kMultiprocessors[] = {1, 2, 3, 5, 8, 17, 40, 132};

// What the plugin's plan asks of the device.
linear::TileDevice tile_device() {
  linear::TileDevice made{};
  made.multiprocessors = emulated::device().multiprocessors;
  for (int splits = 2; splits <= linear::kMostSplits; ++splits) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(splits));
    cudaOccupancyMaxActiveClusters(&made.clusters[splits], nullptr, &config);
  }
  return made;
}

class EmulatedWgmma : public testing::TestWithParam<linear::TileForm> {
 protected:
  void TearDown() override { emulated::device() = {}; }
  const TestHost host_{0, 2};
};

// A product that is cut into such tiles, on a device that is set.
ProductCase case_with(const linear::TileForm& form, linear::TileChoice& choice, std::mt19937_64& random) {
  for (int tries = 0; tries < 20000; ++tries) {
    ProductCase product = random_case(pick(kOutputs, random), pick(kInputs, random), pick(kRows, random), random);
    product.max_rows = 200;
    emulated::device().multiprocessors = static_cast<int>(pick(kMultiprocessors, random));
    choice = linear::choose_tile(linear::rows32_shape(device_problem(device_problem_of(product))),
                                 static_cast<int>(product.rows), tile_device());
    if (choice.form == form) return product;
  }
  throw std::runtime_error("hardly any product is cut so");
}

TEST_P(EmulatedWgmma, MatchesDouble) {
  constexpr int kCases = 8;
  const LoadedPlugin plugin("w4a16_wgmma", host_);
  const std::uint64_t base = first_seed();
  for (std::uint64_t seed = base; seed < base + kCases; ++seed) {
    std::mt19937_64 random(seed);
    linear::TileChoice choice{};
    const ProductCase product = case_with(GetParam(), choice, random);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + to_string(product) + ", " +
                 std::to_string(emulated::device().multiprocessors) + " multiprocessors");
    expect_product(plugin, product, random);
    if (HasFailure()) return;
    const auto args = emulated::last_argument<linear::WgmmaArgs>();
    ASSERT_EQ(args.splits, choice.splits);
    ASSERT_EQ(args.tiles, choice.tiles);
    ASSERT_EQ(args.stage_chunks, choice.stage_chunks);
  }
}

std::string form_name(const testing::TestParamInfo<linear::TileForm>& info) {
  return "Columns" + std::to_string(info.param.columns) + "Blocks" + std::to_string(info.param.blocks) + "Groups" +
         std::to_string(info.param.groups);
}

INSTANTIATE_TEST_SUITE_P(Tiles, EmulatedWgmma, testing::ValuesIn(linear::kTileForms), form_name);

// What the tiles above may leave out: clusters of many blocks, stages of as many chunks as there may be.
TEST(EmulatedWgmmaCuts, MatchDouble) {
  const TestHost host(0, 2);
  const LoadedPlugin plugin("w4a16_wgmma", host);
  const std::uint64_t base = first_seed();
  std::set<int> splits;
  std::set<int> stage_chunks;
  for (std::uint64_t seed = base; splits.size() < 5 || stage_chunks.size() < 3; ++seed) {
    ASSERT_LT(seed, base + 300) << "products are not cut in every way";
    std::mt19937_64 random(seed);
    emulated::device().multiprocessors = static_cast<int>(pick({1, 17, 40, 132}, random));
    ProductCase product =
        random_case(pick({33, 100}, random), pick({640, 1193, 2048, 2600}, random), pick({5, 16}, random), random);
    product.max_rows = 200;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + to_string(product));
    expect_product(plugin, product, random);
    if (HasFailure()) break;
    splits.insert(emulated::last_argument<linear::WgmmaArgs>().splits);
    stage_chunks.insert(emulated::last_argument<linear::WgmmaArgs>().stage_chunks);
  }
  emulated::device() = {};
}

}  // namespace
}  // namespace facet::test
