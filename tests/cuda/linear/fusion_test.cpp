// Fused gate and residual norm against double, the shared packed form, and what is refused.
#include <gtest/gtest.h>

#include "device_run.h"

namespace facet::test {
namespace {

using abi::DType;
using abi::LinearRole;
using abi::WeightFormat;

class CudaFusions : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = missing_device();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  const TestHost host_{0, 4};
};

TEST_F(CudaFusions, GateMatchesDouble) {
  const LoadedPlugin few("w4a16_stream", host_);
  const LoadedPlugin more("w4a16_wgmma", host_);
  const std::uint64_t base = std::random_device{}();
  for (std::uint64_t seed = base; seed < base + 36; ++seed) {
    std::mt19937_64 random(seed);
    const std::int64_t rows = std::vector<std::int64_t>{1, 2, 4, 5, 7, 8, 13, 16, 30, 64, 100, 200}[random() % 12];
    const bool streamed = rows <= 8;
    const LoadedPlugin& plugin = streamed ? few : more;
    const std::int64_t max_rows = streamed ? 8 : 200;
    WeightShape shape{random() % 4 == 0 ? WeightFormat::int8 : WeightFormat::int4, 0, 0, 128, true};
    shape.out_features = 2 * std::vector<std::int64_t>{5, 16, 100, 129, 400}[random() % 5];
    shape.in_features = std::vector<std::int64_t>{64, 200, 1024, 3840}[random() % 4];
    SCOPED_TRACE("seed " + std::to_string(seed) + ", rows " + std::to_string(rows) + ", out " +
                 std::to_string(shape.out_features) + ", in " + std::to_string(shape.in_features));
    std::vector<RandomPart> parts;
    for (int i = 0; i < 2; ++i) {
      WeightShape half = shape;
      half.out_features /= 2;
      parts.emplace_back(half, random);
    }
    const std::vector<float> inputs = bf16_inputs(rows * shape.in_features, random);
    const Expected product = expected_product(inputs, parts, shape,
                                              {.weight = 0,
                                               .segment = !streamed  ? 0.0
                                                          : rows > 4 ? 0x1p-14
                                                                     : 0x1p-15});
    DeviceMatrix fused(plugin, {shape, max_rows, DType::f32, LinearRole::gate_up, abi::kFuseGeluGate}, parts);
    expect_close(fused.run(inputs), gated(product, static_cast<std::size_t>(rows)), DType::f32);
    DeviceMatrix plain(plugin, {shape, max_rows, DType::f32, LinearRole::gate_up}, parts);
    expect_close(plain.run(inputs), product, DType::f32);
    EXPECT_STREQ(fused.plan().layout, plain.plan().layout);
    EXPECT_EQ(fused.packed(), plain.packed());
    const LoadedPlugin many("dequant_cublas", host_);
    DeviceMatrix unpacked(many, {shape, max_rows, DType::f32, LinearRole::gate_up}, parts);
    EXPECT_STREQ(unpacked.plan().layout, plain.plan().layout);
    EXPECT_EQ(unpacked.packed(), plain.packed());
    expect_close(unpacked.run(inputs), expected_product(inputs, parts, shape, {.weight = 0x1p-8, .segment = 0}),
                 DType::f32);
    if (HasFailure()) return;
  }
}

TEST_F(CudaFusions, ResidualNormMatchesDouble) {
  const LoadedPlugin plugin("w4a16_stream", host_);
  const std::uint64_t base = std::random_device{}();
  for (std::uint64_t seed = base; seed < base + 48; ++seed) {
    std::mt19937_64 random(seed);
    const std::int64_t rows = std::vector<std::int64_t>{1, 2, 5, 6, 7, 8}[random() % 6];
    WeightShape shape{WeightFormat::int4, std::vector<std::int64_t>{200, 5000}[random() % 2], 0, 128,
                      random() % 2 == 0};
    shape.in_features = std::vector<std::int64_t>{64, 129, 1024, 3840, 4096}[random() % 5];
    if (rows > 2 && shape.in_features == 129) shape.in_features = 148;
    const bool updated = random() % 4 != 0;
    const bool cancelled = updated && random() % 3 == 0;  // the update takes away all but 2^-7 of the stream
    SCOPED_TRACE("seed " + std::to_string(seed) + ", rows " + std::to_string(rows) + ", in " +
                 std::to_string(shape.in_features) + (updated ? ", updated" : "") + (cancelled ? ", cancelled" : ""));
    const std::vector<RandomPart> parts = random_parts(shape, 2, random);
    RandomResidual made = random_residual(rows, shape.in_features, updated, cancelled, random);
    DeviceMatrix matrix(
        plugin, {shape, rows <= 2 ? 2 : 8, DType::f32, LinearRole::qkv, abi::kFuseResidualNorm, rows <= 2 ? 1 : 5},
        parts);
    const std::vector<float> outputs = matrix.run(made.residual, rows);
    // From 5 rows on the inputs pass through bf16.
    const Rounding rounding{.weight = made.norm_error + (rows > 2 ? 0x1p-8 : 0.0),
                            .segment = rows > 4 ? 0x1p-14 : 0x1p-15};
    expect_close(outputs, expected_product(made.inputs, parts, shape, rounding), DType::f32);
    expect_hidden_close(made);
    if (HasFailure()) return;
  }
}

TEST_F(CudaFusions, RefusalsHaveReasons) {
  const LoadedPlugin plugin("w4a16_stream", host_);
  const WeightShape shape{WeightFormat::int4, 256, 512, 128, true};
  const auto reason = [&](DeviceProblem problem) {
    Text text;
    EXPECT_EQ(plugin.linear().supports(device_problem(problem), text.sink()), 0u);
    return text.text;
  };
  EXPECT_NE(reason({shape, 9}).find("max_rows is 9"), std::string::npos);
  EXPECT_NE(reason({shape, 3, DType::bf16, LinearRole::qkv, abi::kFuseResidualNorm})
                .find("for 1 to 2 rows and for 5 to 8, min_rows is 1 and max_rows 3"),
            std::string::npos);
  const LoadedPlugin few("w4a16_stream", host_, {{"fuse_norm_rows", "2"}});
  Text few_text;
  EXPECT_EQ(few.linear().supports(device_problem({shape, 8, DType::bf16, LinearRole::qkv, abi::kFuseResidualNorm, 5}),
                                  few_text.sink()),
            0u);
  EXPECT_NE(few_text.text.find("up to 2 rows (option fuse_norm_rows), max_rows is 8"), std::string::npos);
  WeightShape wide = shape;
  wide.in_features = 8192;
  EXPECT_NE(reason({wide, 1, DType::bf16, LinearRole::qkv, abi::kFuseResidualNorm}).find("residual norm"),
            std::string::npos);
  wide.in_features = 70000;
  EXPECT_NE(reason({wide, 4}).find("up to 65536"), std::string::npos);
  EXPECT_NE(reason({shape, 1, DType::bf16, LinearRole::qkv, abi::kFuseGeluGate}).find("GELU gate"), std::string::npos);
  EXPECT_NE(reason({shape, 1, DType::bf16, LinearRole::qkv, 1u << 9}).find("unknown bits"), std::string::npos);
  Text text;
  const LoadedPlugin wgmma("w4a16_wgmma", host_);
  EXPECT_EQ(wgmma.linear().supports(device_problem({shape, 8, DType::bf16, LinearRole::qkv, abi::kFuseResidualNorm}),
                                    text.sink()),
            0u);
  EXPECT_NE(text.text.find("fuses no residual norm"), std::string::npos);
  WeightShape odd = shape;
  odd.group_size = 48;
  EXPECT_NE(reason({odd, 1}).find("group_size 48"), std::string::npos);
  WeightShape dense = shape;
  dense.format = WeightFormat::bf16;
  EXPECT_NE(reason({dense, 1}).find("weights are bf16"), std::string::npos);
}

}  // namespace
}  // namespace facet::test
