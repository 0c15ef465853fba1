// Every CUDA linear plugin against the product in double, over shapes that do not divide anything.
#include <gtest/gtest.h>

#include <cmath>

#include "device_run.h"

namespace facet::test {
namespace {

using abi::DType;
using abi::WeightFormat;

struct Variant {
  std::string plugin;
  std::vector<WeightFormat> formats;
  std::int64_t max_rows;
  bool asymmetric_int8;
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all{
      {"w4a16_stream", {WeightFormat::int4, WeightFormat::int8}, 8, false},
      {"w4a16_wgmma", {WeightFormat::int4, WeightFormat::int8}, 300, false},
      {"dequant_cublas", {WeightFormat::int4, WeightFormat::int8}, 300, true},
      {"reference_cuda", {WeightFormat::int4, WeightFormat::int8}, 300, true},
      {"dense_cublas", {WeightFormat::bf16}, 300, false},
  };
  return all;
}

Rounding rounding_of(const std::string& plugin) {
  if (plugin == "dense_cublas" || plugin == "w4a16_wgmma") return {};  // exact operands, fp32 sums
  if (plugin != "w4a16_stream") return {.weight = 0x1p-8, .segment = 0};
  return {.weight = 0, .segment = 0x1p-14};  // fixed point with 14 bits, up to 4 rows 15
}

template <std::size_t N>
std::int64_t pick(const std::int64_t (&values)[N], std::mt19937_64& random) {
  return values[random() % N];
}

std::string describe(const WeightShape& shape, std::int64_t rows, DType output) {
  return "rows " + std::to_string(rows) + ", in " + std::to_string(shape.in_features) + ", out " +
         std::to_string(shape.out_features) + ", format " + std::to_string(static_cast<int>(shape.format)) +
         ", group " + std::to_string(shape.group_size) + (shape.symmetric ? ", symmetric" : ", asymmetric") +
         (output == DType::f32 ? ", f32" : ", bf16");
}

class CudaProducts : public testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    const std::string missing = missing_device();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  const Variant& variant() const { return variants()[GetParam()]; }
  const TestHost host_{0, 4};
};

TEST_P(CudaProducts, MatchDoubleOnRandomShapes) {
  const LoadedPlugin plugin(variant().plugin, host_);
  const std::uint64_t base = std::random_device{}();
  constexpr std::int64_t kInputs[] = {8, 64, 120, 192, 1025, 2500, 3840, 4096};
  constexpr std::int64_t kOutputs[] = {1, 8, 48, 199, 256, 515};
  constexpr std::int64_t kRows[] = {1, 1, 2, 3, 4, 5, 8, 9, 16, 17, 24, 31, 32, 33, 48, 57, 64, 65, 200};
  for (const WeightFormat format : variant().formats) {
    for (std::uint64_t seed = base; seed < base + 40; ++seed) {
      std::mt19937_64 random(seed);
      WeightShape shape{format, pick(kOutputs, random), pick(kInputs, random), 128, true};
      const std::int64_t groups[] = {32, 64, 128, shape.in_features};
      shape.group_size = pick(groups, random);
      if (format == WeightFormat::int4 || (format == WeightFormat::int8 && variant().asymmetric_int8))
        shape.symmetric = random() % 2 == 0;
      const std::int64_t rows = std::min(pick(kRows, random), variant().max_rows);
      const DType output = random() % 2 == 0 ? DType::bf16 : DType::f32;
      SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(shape, rows, output));
      const std::vector<RandomPart> parts = random_parts(shape, 1 + static_cast<int>(random() % 3), random);
      const std::vector<float> inputs = bf16_inputs(rows * shape.in_features, random);
      const std::int64_t max_rows = std::min(std::max(rows, std::int64_t{5}), variant().max_rows);
      DeviceMatrix matrix(plugin, {shape, max_rows, output}, parts);
      // Padding of 8 keeps rows aligned as an engine would; 5 does not.
      const std::vector<float> outputs = matrix.run(inputs, random() % 4 == 0 ? 5 : 8);
      expect_close(outputs, expected_product(inputs, parts, shape, rounding_of(variant().plugin)), output);
      if (HasFailure()) return;
    }
  }
}

TEST_P(CudaProducts, LargeActivationsSurviveAtEveryRowCount) {
  const LoadedPlugin plugin(variant().plugin, host_);
  for (const WeightFormat format : variant().formats) {
    std::mt19937_64 random(34);
    const WeightShape shape{format, 48, 256, 128, true};
    const std::vector<RandomPart> parts = random_parts(shape, 1, random);
    DeviceMatrix matrix(plugin, {shape, variant().max_rows, DType::f32}, parts);
    for (const std::int64_t rows : {1, 2, 4, 8, 16, 64, 300}) {
      if (rows > variant().max_rows) continue;
      std::vector<float> inputs(static_cast<std::size_t>(rows * shape.in_features), 0.0f);
      for (std::int64_t row = 0; row < rows; ++row) {
        inputs[static_cast<std::size_t>(row * shape.in_features)] = 71680.0f;  // exact in bf16, above all of fp16
        inputs[static_cast<std::size_t>(row * shape.in_features + 200)] = 0x1p-60f;
      }
      SCOPED_TRACE("rows " + std::to_string(rows));
      expect_close(matrix.run(inputs), expected_product(inputs, parts, shape, rounding_of(variant().plugin)),
                   DType::f32);
    }
  }
}

TEST_P(CudaProducts, NanInputsReachTheOutput) {
  const LoadedPlugin plugin(variant().plugin, host_);
  for (const WeightFormat format : variant().formats) {
    std::mt19937_64 random(35);
    const WeightShape shape{format, 48, 256, 128, true};
    const std::vector<RandomPart> parts = random_parts(shape, 1, random);
    DeviceMatrix matrix(plugin, {shape, std::min<std::int64_t>(8, variant().max_rows), DType::f32}, parts);
    for (const std::int64_t rows : {1, 2, 4, 8}) {
      if (rows > variant().max_rows) continue;
      std::vector<float> inputs = bf16_inputs(rows * shape.in_features, random);
      inputs[static_cast<std::size_t>((rows - 1) * shape.in_features + 130)] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> outputs = matrix.run(inputs);
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t column = 0; column < shape.out_features; ++column)
          EXPECT_EQ(std::isnan(outputs[static_cast<std::size_t>(row * shape.out_features + column)]), row + 1 == rows)
              << "row " << row << " of " << rows;
      }
    }
  }
}

std::string variant_name(const testing::TestParamInfo<std::size_t>& info) {
  return variants()[info.param].plugin;
}

INSTANTIATE_TEST_SUITE_P(All, CudaProducts, testing::Range<std::size_t>(0, variants().size()), variant_name);

}  // namespace
}  // namespace facet::test
