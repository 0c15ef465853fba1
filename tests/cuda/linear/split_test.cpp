// w4a16_stream without a norm: shapes whose units and inputs are split in every way among warps and blocks.
#include <gtest/gtest.h>

#include "device_run.h"

namespace facet::test {
namespace {

using abi::DType;
using abi::LinearRole;
using abi::WeightFormat;

struct Case {
  std::int64_t out_features;
  std::int64_t in_features;
};

class CudaSplit : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::string missing = missing_device();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  const TestHost host_{0, 4};
};

TEST_P(CudaSplit, MatchesDouble) {
  const LoadedPlugin plugin("w4a16_stream", host_);
  const std::uint64_t base = std::random_device{}();
  for (std::uint64_t seed = base; seed < base + 4; ++seed) {
    std::mt19937_64 random(seed);
    const WeightFormat format = random() % 4 == 0 ? WeightFormat::int8 : WeightFormat::int4;
    WeightShape shape{format, GetParam().out_features, GetParam().in_features, 0, true};
    shape.group_size = std::vector<std::int64_t>{32, 64, 128, 128, shape.in_features}[random() % 5];
    if (format == WeightFormat::int4) shape.symmetric = random() % 2 == 0;
    const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % 8);
    const DType output = random() % 2 == 0 ? DType::bf16 : DType::f32;
    SCOPED_TRACE("seed " + std::to_string(seed) + ", rows " + std::to_string(rows) + ", format " +
                 std::to_string(static_cast<int>(format)) + ", group " + std::to_string(shape.group_size) +
                 (shape.symmetric ? "" : ", asymmetric"));
    const std::vector<RandomPart> parts = random_parts(shape, 2, random);
    const std::vector<float> inputs = bf16_inputs(rows * shape.in_features, random);
    DeviceMatrix matrix(plugin, {shape, 8, output}, parts);
    expect_close(matrix.run(inputs, random() % 4 == 0 ? 5 : 8),
                 expected_product(inputs, parts, shape, {.weight = 0, .segment = rows > 4 ? 0x1p-14 : 0x1p-15}),
                 output);
    if (HasFailure()) return;
  }
}

// Many units to a cluster, with few and with many inputs; few units to one, of as many inputs as the 12B has; one
// chunk; fewer chunks than a cluster could have blocks.
INSTANTIATE_TEST_SUITE_P(Shapes, CudaSplit,
                         testing::Values(Case{40007, 200}, Case{12001, 1928}, Case{1000, 15360}, Case{130, 8200},
                                         Case{9000, 120}, Case{300, 900}, Case{77, 20000}));

}  // namespace
}  // namespace facet::test
