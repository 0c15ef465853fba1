// The fused residual norm on the emulated machine: each block's own (gemv.cuh, 1 and 2 rows) and by blocks of the
// launch (norm_blocks.cuh, 5 to 8 rows).
#include <gtest/gtest.h>

#include <random>

#include "../linear/device_run.h"
#include "launch.h"
#include "product_case.h"
#include "quant_gptq/cuda/w4a16_stream/wide.h"

namespace facet::test {
namespace {

using abi::DType;
using abi::LinearRole;
using abi::WeightFormat;

constexpr int kCases = 10;
constexpr std::int64_t kInputs[] = {64, 129, 192, 576, 1000, 1024, 1600, 4096};
constexpr std::int64_t kFoursOfInputs[] = {4, 64, 128, 148, 576, 1000, 1024, 1600, 4096};  // of more than 2 rows
constexpr std::int64_t kOutputs[] = {1, 33, 96, 256, 300, 640};
constexpr std::int64_t kMultiprocessors[] = {5, 7, 10, 17, 40, 132};

class EmulatedNorm : public testing::TestWithParam<int> {
 protected:
  void TearDown() override { emulated::device() = {}; }
  const TestHost host_{0, 2};
  const LoadedPlugin plugin_{"w4a16_stream", host_};
};

TEST_P(EmulatedNorm, MatchesDouble) {
  const std::int64_t rows = GetParam();
  const std::uint64_t base = first_seed();
  for (std::uint64_t seed = base; seed < base + kCases; ++seed) {
    std::mt19937_64 random(seed);
    emulated::set_seed(seed);
    emulated::device().multiprocessors = static_cast<int>(pick(kMultiprocessors, random));
    const std::int64_t inputs = rows > 2 ? pick(kFoursOfInputs, random) : pick(kInputs, random);
    ProductCase product = random_case(pick(kOutputs, random), inputs, rows, random);
    product.fusions |= abi::kFuseResidualNorm;
    const bool updated = random() % 4 != 0;
    const bool cancelled = updated && random() % 3 == 0;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + to_string(product) + (updated ? ", updated" : "") +
                 (cancelled ? ", cancelled" : "") + ", " + std::to_string(emulated::device().multiprocessors) +
                 " multiprocessors");
    const std::vector<RandomPart> parts = case_parts(product, random);
    RandomResidual made = random_residual(rows, product.shape.in_features, updated, cancelled, random);
    // From 5 rows on the inputs pass through bf16.
    product.rounding = {.weight = made.norm_error + (rows > 2 ? 0x1p-8 : 0.0), .segment = rows > 4 ? 0x1p-14 : 0x1p-15};
    product.min_rows = rows > 2 ? 5 : 1;
    product.max_rows = rows > 2 ? 8 : 2;
    DeviceMatrix matrix(plugin_, device_problem_of(product), parts);
    const std::vector<float> outputs = matrix.run(made.residual, rows);
    expect_close(outputs, case_result(product, made.inputs, parts), product.output);
    expect_hidden_close(made);
    if (HasFailure()) return;
    if (rows > 4) {
      const int blocks = emulated::last_argument<linear::WideArgs>().norm.count;
      EXPECT_TRUE(blocks == linear::kNormBlocks || blocks == linear::kMostNormBlocks) << blocks;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, EmulatedNorm, testing::Values(1, 2, 5, 6, 7, 8), testing::PrintToStringParamName());

// A row for each block of the norm where tiles leave multiprocessors over, two where that would take a second round.
TEST_F(EmulatedNorm, BlocksOfTheNormAsPlacesAllow) {
  emulated::device().multiprocessors = 12;
  std::mt19937_64 random(std::random_device{}());
  for (const auto& [outputs, blocks] : {std::pair{256, linear::kMostNormBlocks}, {512, linear::kNormBlocks}}) {
    ProductCase product;
    product.shape = {WeightFormat::int4, outputs, 128, 128, true};
    product.fusions = abi::kFuseResidualNorm;
    product.role = LinearRole::qkv;
    product.min_rows = 5;
    product.max_rows = 8;
    DeviceMatrix matrix(plugin_, device_problem_of(product), case_parts(product, random));
    RandomResidual made = random_residual(8, 128, true, false, random);
    matrix.run(made.residual, 8);
    EXPECT_EQ(emulated::last_argument<linear::WideArgs>().norm.count, blocks) << outputs;
  }
}

TEST_F(EmulatedNorm, ARunNeedsAlignedArraysAndCounters) {
  std::mt19937_64 random(std::random_device{}());
  const WeightShape shape{WeightFormat::int4, 64, 128, 128, true};
  DeviceMatrix matrix(plugin_, {shape, 8, DType::f32, LinearRole::qkv, abi::kFuseResidualNorm, 5},
                      random_parts(shape, 1, random));
  std::vector<float> hidden(8 * 128 + 1, 1.0f), norm(128, 1.0f);
  std::vector<std::uint16_t> x(1 << 14);  // more than the workspace needs
  std::vector<float> y(8 * 64);
  alignas(64) unsigned char counters[abi::kCounterBytes] = {};
  abi::LinearResidual residual{};
  residual.size = sizeof residual;
  residual.hidden = hidden.data() + 1;
  residual.next_norm = norm.data();
  abi::LinearArgs args{};
  args.size = sizeof args;
  args.rows = 5;
  args.output = y.data();
  args.output_stride = 64;
  args.workspace = {x.data(), x.size() * 2};
  args.residual = &residual;
  const auto error = [&] {
    Text text;
    EXPECT_EQ(plugin_.linear().run(matrix.plan(), args, text.sink()), abi::Status::invalid_argument);
    return text.text;
  };
  args.counters = counters;
  EXPECT_NE(error().find("multiple of 16 bytes"), std::string::npos);
  residual.hidden = hidden.data();
  args.counters = nullptr;
  EXPECT_NE(error().find("no counters"), std::string::npos);
}

}  // namespace
}  // namespace facet::test
