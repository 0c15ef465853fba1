// w4a16_wgmma where a block takes several tiles one after the other, so that one tile's weights arrive while another's
// sums leave.
#include <gtest/gtest.h>

#include "device_run.h"
#include "quant_gptq/cuda/rows32/pack.h"
#include "quant_gptq/cuda/w4a16_wgmma/layout.h"

namespace facet::test {
namespace {

using abi::DType;
using abi::WeightFormat;

class CudaRounds : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    const std::string missing = missing_device();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  const TestHost host_{0, 4};
};

TEST_P(CudaRounds, MatchDouble) {
  const std::int64_t rows = GetParam();
  const LoadedPlugin plugin("w4a16_wgmma", host_);
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  // Narrow, so that the reference takes little time; an odd number of chunks does not fill the last stage.
  const WeightShape shape{WeightFormat::int4, 60000, 328, 128, random() % 2 == 0};
  const std::vector<RandomPart> parts = random_parts(shape, 2, random);
  const std::vector<float> inputs = bf16_inputs(rows * shape.in_features, random);
  const DeviceProblem problem{shape, rows, DType::bf16};
  linear::TileDevice device{};
  check(cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  const linear::TileChoice choice =
      linear::choose_tile(linear::rows32_shape(device_problem(problem)), static_cast<int>(rows), device);
  ASSERT_GT(choice.tiles, choice.grid) << "every block has one tile only";
  DeviceMatrix matrix(plugin, problem, parts);
  expect_close(matrix.run(inputs), expected_product(inputs, parts, shape, {}), DType::bf16);
}

INSTANTIATE_TEST_SUITE_P(Rows, CudaRounds, testing::Values(7, 16, 33, 70));

}  // namespace
}  // namespace facet::test
