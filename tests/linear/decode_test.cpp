// Weights come out of every packed form bit for bit: inputs with a single 127 and scales of few bits make every product
// exact in every plugin, so results are compared for equality with a decoder of the test's own.
#include <gtest/gtest.h>

#include "variants.h"

namespace facet::test {
namespace {

constexpr float kOne = 127.0f;  // int8 activations hold it exactly, with a scale of 1

// Row k of the inputs is kOne at input k, so output [k][n] is kOne * weight(n, k).
void expect_exact_weights(const LoadedPlugin& plugin, const std::vector<RandomPart>& parts, const WeightShape& shape) {
  const std::int64_t in = shape.in_features;
  std::vector<float> inputs(static_cast<std::size_t>(in * in), 0.0f);
  for (std::int64_t k = 0; k < in; ++k) inputs[static_cast<std::size_t>(k * in + k)] = kOne;
  PlannedMatrix matrix(plugin, {shape, in}, parts);
  const std::vector<float> outputs = matrix.run(inputs);
  std::int64_t wrong = 0;
  std::int64_t column = 0;
  for (const RandomPart& part : parts) {
    for (std::int64_t row = 0; row < part.view().out_features; ++row, ++column) {
      for (std::int64_t k = 0; k < in; ++k) {
        const float expected = static_cast<float>(static_cast<double>(kOne) * part.weight(row, k));
        const float actual = outputs[static_cast<std::size_t>(k * shape.out_features + column)];
        if (actual != expected && ++wrong <= 5)
          ADD_FAILURE() << "output " << column << ", input " << k << ": " << actual << ", expected " << expected;
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

using Decode = VariantIsaTest;

// Input i of a row is nibble i of its words, the low one first; zero points follow their own column.
TEST_P(Decode, GoldenWord) {
  const TestHost host(features());
  const LoadedPlugin plugin(variant().plugin, host, variant().options);
  for (const abi::WeightFormat format : variant().formats) {
    if (format != abi::WeightFormat::int4) continue;
    for (const bool symmetric : {true, false}) {
      std::mt19937_64 random(22);
      const WeightShape shape{format, 20, 8, 32, symmetric};
      std::vector<RandomPart> parts;
      parts.emplace_back(shape, random);
      for (std::int64_t row = 0; row < shape.out_features; ++row) {
        for (int i = 0; i < 8; ++i) parts[0].set_code(row, i, i);
      }
      ASSERT_EQ(static_cast<const std::uint32_t*>(parts[0].view().values)[0], 0x76543210u);
      expect_exact_weights(plugin, parts, shape);
    }
  }
}

// Every combination of four neighbouring int4 codes, in every place of a vector.
TEST_P(Decode, AllFourLaneCombinations) {
  const TestHost host(features());
  const LoadedPlugin plugin(variant().plugin, host, variant().options);
  for (const abi::WeightFormat format : variant().formats) {
    if (format != abi::WeightFormat::int4) continue;
    std::mt19937_64 random(23);
    const WeightShape shape{format, 8192, 32, 32, true};
    std::vector<RandomPart> parts;
    parts.emplace_back(shape, random);
    int combination = 0;
    for (std::int64_t row = 0; row < shape.out_features; ++row) {
      for (std::int64_t k = 0; k < 32; k += 4, ++combination) {
        for (int i = 0; i < 4; ++i) parts[0].set_code(row, k + i, (combination >> (4 * i)) & 15);
      }
    }
    ASSERT_EQ(combination, 65536);
    expect_exact_weights(plugin, parts, shape);
  }
}

// All codes with all zero points they may meet, groups short and long, several parts.
TEST_P(Decode, RandomCodesWithZeroPoints) {
  const TestHost host(features());
  const LoadedPlugin plugin(variant().plugin, host, variant().options);
  for (const abi::WeightFormat format : variant().formats) {
    for (const std::int64_t group : {32, 64, 128, 256, 1000}) {
      std::mt19937_64 random(static_cast<std::uint64_t>(group));
      const WeightShape shape{format, 120, 203, group, format == abi::WeightFormat::bf16};
      SCOPED_TRACE("group " + std::to_string(group) + ", format " + std::to_string(static_cast<int>(format)));
      expect_exact_weights(plugin, random_parts(shape, 3, random), shape);
    }
  }
}

FACET_INSTANTIATE_VARIANTS(Decode);

}  // namespace
}  // namespace facet::test
