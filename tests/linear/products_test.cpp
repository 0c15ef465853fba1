// Every plugin against the product in double, over shapes that do not divide anything.
#include <gtest/gtest.h>

#include <cstring>

#include "variants.h"

namespace facet::test {
namespace {

using Products = VariantIsaTest;

template <std::size_t N>
std::int64_t pick(const std::int64_t (&values)[N], std::mt19937_64& random) {
  return values[random() % N];
}

// The last is longer than what any kernel takes of a row at a time.
constexpr std::int64_t kInputs[] = {8, 64, 120, 192, 1025, 2500};
constexpr std::int64_t kOutputs[] = {1, 8, 48, 199, 256};
constexpr std::int64_t kRows[] = {1, 2, 7, 16, 33, 65};

WeightShape random_shape(abi::WeightFormat format, std::mt19937_64& random) {
  WeightShape shape;
  shape.format = format;
  shape.in_features = pick(kInputs, random);
  shape.out_features = pick(kOutputs, random);
  const std::int64_t groups[] = {32, 64, 128, shape.in_features};
  shape.group_size = pick(groups, random);
  shape.symmetric = format == abi::WeightFormat::bf16 || random() % 2 == 0;
  return shape;
}

std::string describe(const WeightShape& shape, std::int64_t rows, int parts) {
  return "rows " + std::to_string(rows) + ", in " + std::to_string(shape.in_features) + ", out " +
         std::to_string(shape.out_features) + ", format " + std::to_string(static_cast<int>(shape.format)) +
         ", group " + std::to_string(shape.group_size) + (shape.symmetric ? ", symmetric, " : ", asymmetric, ") +
         std::to_string(parts) + " parts";
}

TEST_P(Products, MatchDoubleOnRandomShapes) {
  const TestHost host(features());
  const LoadedPlugin plugin(variant().plugin, host, variant().options);
  for (const abi::WeightFormat format : variant().formats) {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      std::mt19937_64 random(seed);
      const WeightShape shape = random_shape(format, random);
      const std::int64_t rows = pick(kRows, random);
      const int count = 1 + static_cast<int>(random() % 3);
      SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(shape, rows, count));
      const std::vector<RandomPart> parts = random_parts(shape, count, random);
      const std::vector<float> inputs = random_inputs(rows * shape.in_features, random);
      PlannedMatrix matrix(plugin, {shape, rows}, parts);
      expect_product(matrix.run(inputs), inputs, parts, shape, variant().rounding);
    }
  }
}

// A row alone, in a batch, and under a plan for more rows gives the same bits.
TEST_P(Products, RowsDoNotDependOnEachOther) {
  const TestHost host(features());
  const LoadedPlugin plugin(variant().plugin, host, variant().options);
  ASSERT_TRUE(plugin.claims(abi::kBatchInvariant));
  for (const abi::WeightFormat format : variant().formats) {
    for (std::uint64_t seed = 100; seed < 108; ++seed) {
      std::mt19937_64 random(seed);
      const WeightShape shape = random_shape(format, random);
      const std::int64_t rows = pick(kRows, random);
      SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(shape, rows, 1));
      const std::vector<RandomPart> parts = random_parts(shape, 1, random);
      const std::vector<float> inputs = random_inputs(rows * shape.in_features, random);
      PlannedMatrix matrix(plugin, {shape, rows}, parts);
      PlannedMatrix larger(plugin, {shape, rows + 500}, parts);
      const std::vector<float> together = matrix.run(inputs);
      const std::vector<float> in_larger = larger.run(inputs);
      EXPECT_EQ(0, std::memcmp(together.data(), in_larger.data(), together.size() * sizeof(float)));
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::vector<float> one(inputs.begin() + row * shape.in_features,
                                     inputs.begin() + (row + 1) * shape.in_features);
        const std::vector<float> alone = matrix.run(one);
        ASSERT_EQ(0, std::memcmp(alone.data(), together.data() + row * shape.out_features, alone.size() * 4))
            << "row " << row;
      }
    }
  }
}

// Activations of Gemma exceed the range of fp16; every row count must carry them.
TEST_P(Products, LargeActivationsSurviveAtEveryRowCount) {
  const TestHost host(features());
  const LoadedPlugin plugin(variant().plugin, host, variant().options);
  for (const abi::WeightFormat format : variant().formats) {
    std::mt19937_64 random(34);
    const WeightShape shape{format, 48, 256, 128, true};
    std::vector<RandomPart> parts = random_parts(shape, 1, random);
    PlannedMatrix matrix(plugin, {shape, 512}, parts);
    for (const std::int64_t rows : {1, 8, 63, 64, 65, 512}) {
      std::vector<float> inputs(static_cast<std::size_t>(rows * shape.in_features), 0.0f);
      for (std::int64_t row = 0; row < rows; ++row)
        inputs[static_cast<std::size_t>(row * shape.in_features)] = 70000.0f;
      SCOPED_TRACE("rows " + std::to_string(rows));
      expect_product(matrix.run(inputs), inputs, parts, shape, variant().rounding);
    }
  }
}

FACET_INSTANTIATE_VARIANTS(Products);

}  // namespace
}  // namespace facet::test
