// The kernels of w4a16_stream for 5 to 8 rows (wide.cuh), in every way in which a product is cut.
#include <gtest/gtest.h>

#include <optional>

#include "launch.h"
#include "product_case.h"
#include "quant_gptq/cuda/rows32/pack.h"
#include "quant_gptq/cuda/w4a16_stream/wide.h"

namespace facet::test {
namespace {

constexpr std::int64_t kInputs[] = {8, 64, 120, 192, 200, 320, 448, 640, 1000, 1152, 1160};
constexpr std::int64_t kOutputs[] = {1, 33, 96, 160, 255, 256, 300, 515, 640};
// Blocks share the inputs where there are many.
constexpr std::int64_t kManyInputs[] = {1600, 2048, 2184, 2563, 3080, 4096};
constexpr std::int64_t kFewOutputs[] = {1, 33, 96, 160, 255, 256, 300};
constexpr int kMostMultiprocessors = 40;

struct Cut {
  int k_shift;
  int split_shift;
};

// A device on which a product is cut so.
std::optional<emulated::Device> device_for(const ProductCase& product, const Cut& cut, std::mt19937_64& random) {
  linear::WideArgs args{};
  args.shape = linear::rows32_shape(device_problem(device_problem_of(product)));
  std::vector<emulated::Device> found;
  for (int multiprocessors = 1; multiprocessors <= kMostMultiprocessors; ++multiprocessors) {
    emulated::Device device;
    device.multiprocessors = multiprocessors;
    const int four = multiprocessors / 4 - device.lost_clusters;
    linear::wide_cut(args, {multiprocessors, {0, 0, multiprocessors / 2, 0, four > 0 ? four : 0}});
    if (args.k_shift == cut.k_shift && args.split_shift == cut.split_shift) found.push_back(device);
  }
  if (found.empty()) return std::nullopt;
  return found[random() % 2 == 0 ? 0 : random() % found.size()];  // often the smallest
}

class EmulatedWide : public testing::TestWithParam<Cut> {
 protected:
  void TearDown() override { emulated::device() = {}; }
  const TestHost host_{0, 2};
};

TEST_P(EmulatedWide, MatchesDouble) {
  constexpr int kCases = 20;
  const LoadedPlugin plugin("w4a16_stream", host_);
  const std::uint64_t base = first_seed();
  int several_tiles = 0;
  int idle_blocks = 0;
  int done = 0;
  const auto all_seen = [&] {
    return (several_tiles > 0 || GetParam().split_shift > 0) && (idle_blocks > 0 || GetParam().split_shift > 1);
  };
  for (std::uint64_t seed = base; done < kCases || !all_seen(); ++seed) {
    ASSERT_LT(seed, base + 200 * kCases) << "hardly any product is cut so";
    std::mt19937_64 random(seed);
    const bool split = GetParam().split_shift > 0;
    ProductCase product =
        random_case(split ? pick(kFewOutputs, random) : pick(kOutputs, random),
                    split ? pick(kManyInputs, random) : pick(kInputs, random), pick({5, 6, 7, 8}, random), random);
    product.rounding.segment = 0x1p-14;
    const std::optional<emulated::Device> device = device_for(product, GetParam(), random);
    if (!device) continue;
    ++done;
    emulated::device() = *device;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + to_string(product) + ", " +
                 std::to_string(device->multiprocessors) + " multiprocessors");
    expect_product(plugin, product, random);
    if (HasFailure()) return;
    const auto args = emulated::last_argument<linear::WideArgs>();
    ASSERT_EQ(args.k_shift, GetParam().k_shift);
    ASSERT_EQ(args.split_shift, GetParam().split_shift);
    if (args.tiles > args.clusters) ++several_tiles;
    if (static_cast<int>(emulated::last_launch().launch.grid) > args.clusters << args.split_shift) ++idle_blocks;
  }
}

// Attention of few sequences leaves 82 KiB of a multiprocessor: o's blocks are there before it ends.
TEST(EmulatedWideMemory, TheOutputProjectionFitsBesideAttention) {
  const TestHost host{0, 2};
  const LoadedPlugin plugin("w4a16_stream", host);
  const LoadedPlugin alone("w4a16_stream", host, {{"blocks_per_sm", "1"}});
  std::mt19937_64 random(first_seed());
  const auto shared_bytes = [&](const LoadedPlugin& plugin_of, abi::LinearRole role) {
    ProductCase product;
    product.shape = {abi::WeightFormat::int4, 256, 4096, 128, true};
    product.rows = 8;
    product.role = role;
    product.rounding.segment = 0x1p-14;
    expect_product(plugin_of, product, random);
    return emulated::last_launch().launch.shared_bytes;
  };
  EXPECT_LE(shared_bytes(plugin, abi::LinearRole::o), 80U << 10);
  EXPECT_GT(shared_bytes(plugin, abi::LinearRole::down), 80U << 10) << "the limit is o's, others have a longer ring";
  EXPECT_GT(shared_bytes(alone, abi::LinearRole::o), 80U << 10) << "a block that shares with none needs no limit";
}

std::string cut_name(const testing::TestParamInfo<Cut>& info) {
  return "KShift" + std::to_string(info.param.k_shift) + "SplitShift" + std::to_string(info.param.split_shift);
}

// Clusters of two blocks that take 128 rows of W each are never the fastest.
INSTANTIATE_TEST_SUITE_P(Cuts, EmulatedWide, testing::Values(Cut{0, 0}, Cut{0, 2}, Cut{1, 0}, Cut{1, 1}), cut_name);

}  // namespace
}  // namespace facet::test
