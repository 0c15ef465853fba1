// The kernels of w4a16_stream for 1 to 4 rows (gemv.cuh, split.cuh).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "launch.h"
#include "product_case.h"
#include "quant_gptq/cuda/w4a16_stream/stream.h"

namespace facet::test {
namespace {

using abi::DType;
using abi::WeightFormat;

constexpr std::int64_t kInputs[] = {8, 64, 129, 200, 320, 640, 1000, 1024, 1152, 1193};
constexpr std::int64_t kOutputs[] = {1, 33, 64, 100, 255, 256, 300, 515, 640};
constexpr std::int64_t kMultiprocessors[] = {1, 2, 3, 5, 8, 17, 40, 132};
// KiB; with little of it more blocks share the inputs.
constexpr std::int64_t kShared[] = {228, 200, 96, 80, 64};
constexpr int kLittleShared = 48;

class EmulatedStream : public testing::Test {
 protected:
  void TearDown() override { emulated::device() = {}; }
  static void random_device_for(std::mt19937_64& random) {
    emulated::device().multiprocessors = static_cast<int>(pick(kMultiprocessors, random));
    emulated::device().shared_per_multiprocessor = static_cast<int>(pick(kShared, random)) << 10;
  }
  static std::string describe_device() {
    return ", " + std::to_string(emulated::device().multiprocessors) + " multiprocessors of " +
           std::to_string(emulated::device().shared_per_multiprocessor) + " bytes";
  }
  const TestHost host_{0, 2};
  const LoadedPlugin plugin_{"w4a16_stream", host_};
  const std::uint64_t base_ = first_seed();
};

TEST_F(EmulatedStream, OneRowMatchesDouble) {
  for (std::uint64_t seed = base_; seed < base_ + 30; ++seed) {
    std::mt19937_64 random(seed);
    random_device_for(random);
    ProductCase product = random_case(pick(kOutputs, random), pick(kInputs, random), 1, random);
    product.rounding.segment = 0x1p-15;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + to_string(product) + describe_device());
    expect_product(plugin_, product, random);
    if (HasFailure()) return;
  }
}

TEST_F(EmulatedStream, TwoToFourRowsMatchDoubleInEveryCut) {
  std::set<int> splits;
  std::set<int> depths;
  int idle_blocks = 0;
  const auto all_seen = [&] { return splits.size() == 4 && depths.size() == 2 && idle_blocks > 0; };
  for (std::uint64_t seed = base_; seed < base_ + 60 || !all_seen(); ++seed) {
    ASSERT_LT(seed, base_ + 800) << "products are not cut in every way";
    std::mt19937_64 random(seed);
    random_device_for(random);
    if (random() % 2 == 0) {  // clusters of as many blocks as there are chunks
      emulated::device().multiprocessors = static_cast<int>(pick({17, 40, 132}, random));
      emulated::device().shared_per_multiprocessor = kLittleShared << 10;
    }
    ProductCase product = random_case(pick(kOutputs, random), pick(kInputs, random), pick({2, 3, 4}, random), random);
    product.rounding.segment = 0x1p-15;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + to_string(product) + describe_device());
    expect_product(plugin_, product, random);
    if (HasFailure()) return;
    const auto args = emulated::last_argument<linear::StreamArgs>();
    splits.insert(args.splits);
    if (args.splits > 1) depths.insert(args.depth);
    if (static_cast<int>(emulated::last_launch().launch.grid) > args.clusters * args.splits) ++idle_blocks;
  }
}

TEST_F(EmulatedStream, NanReachesTheOutputsOfItsRow) {
  for (std::int64_t rows = 1; rows <= 8; ++rows) {
    std::mt19937_64 random(base_);
    SCOPED_TRACE("seed " + std::to_string(base_) + ", rows " + std::to_string(rows));
    const WeightShape shape{rows % 2 == 0 ? WeightFormat::int4 : WeightFormat::int8, 48, 256, 128, true};
    const std::vector<RandomPart> parts = random_parts(shape, 1, random);
    DeviceMatrix matrix(plugin_, {shape, 8, DType::f32}, parts);
    std::vector<float> inputs = bf16_inputs(rows * shape.in_features, random);
    inputs[static_cast<std::size_t>((rows - 1) * shape.in_features + 130)] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> outputs = matrix.run(inputs);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      EXPECT_EQ(std::isnan(outputs[i]), i >= static_cast<std::size_t>((rows - 1) * shape.out_features)) << i;
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace facet::test
