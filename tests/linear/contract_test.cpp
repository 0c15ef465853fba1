// What the host relies on beside numbers: reasons, shared packed forms, and errors that are told.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "variants.h"

namespace facet::test {
namespace {

using Contract = VariantIsaTest;

TEST_P(Contract, RefusesWithEveryReason) {
  const TestHost host(features());
  const LoadedPlugin plugin(variant().plugin, host, variant().options);
  abi::LinearProblem problem = linear_problem({{variant().formats[0], 16, 128, 32, true}, 4});
  Text none;
  ASSERT_EQ(plugin.linear().supports(problem, none.sink()), 1u) << none.text;
  EXPECT_EQ(none.text, "");

  problem.device = abi::Device::cuda;
  problem.input = abi::DType::bf16;
  problem.output = abi::DType::f16;
  problem.in_features = 0;
  problem.min_rows = 9;
  Text reasons;
  EXPECT_EQ(plugin.linear().supports(problem, reasons.sink()), 0u);
  for (const char* part : {"cuda", "bf16", "f16", "in_features is 0", "rows 9..4"})
    EXPECT_NE(reasons.text.find(part), std::string::npos) << part << " is missing in:\n" << reasons.text;

  abi::LinearPlan plan{};
  Text error;
  EXPECT_EQ(plugin.linear().plan(problem, &plan, error.sink()), abi::Status::unsupported);
  EXPECT_NE(error.text.find("in_features is 0"), std::string::npos);
}

TEST_P(Contract, RefusesFormatsItDoesNotTake) {
  const TestHost host(features());
  const LoadedPlugin plugin(variant().plugin, host, variant().options);
  for (const abi::WeightFormat format : {abi::WeightFormat::bf16, abi::WeightFormat::int8, abi::WeightFormat::int4}) {
    const abi::LinearProblem problem = linear_problem({{format, 16, 128, 32, true}, 4});
    const bool known = std::find(variant().formats.begin(), variant().formats.end(), format) != variant().formats.end();
    Text reasons;
    EXPECT_EQ(plugin.linear().supports(problem, reasons.sink()), known ? 1u : 0u) << reasons.text;
    EXPECT_EQ(reasons.text.empty(), known);
  }
}

TEST_P(Contract, TooManyRowsAndWrongPartsAreErrors) {
  const TestHost host(features());
  const LoadedPlugin plugin(variant().plugin, host, variant().options);
  std::mt19937_64 random(7);
  const WeightShape shape{variant().formats[0], 16, 64, 32, true};
  const std::vector<RandomPart> parts = random_parts(shape, 1, random);
  PlannedMatrix matrix(plugin, {shape, 4}, parts);

  std::vector<float> x(64 * 5);
  std::vector<float> y(16 * 5);
  GuardedBytes workspace(matrix.plan().workspace_bytes);
  GuardedBytes packed(matrix.plan().packed_bytes);
  const abi::WeightView view = parts[0].view();
  abi::LinearArgs args{};
  args.size = sizeof args;
  args.part_count = 1;
  args.parts = &view;
  args.rows = 5;
  args.input = x.data();
  args.input_stride = 64;
  args.output = y.data();
  args.output_stride = 16;
  args.packed = packed.data();
  args.workspace = workspace.memory();
  Text error;
  EXPECT_EQ(plugin.linear().run(matrix.plan(), args, error.sink()), abi::Status::invalid_argument);
  EXPECT_NE(error.text.find("5 rows"), std::string::npos) << error.text;

  abi::WeightView narrow = view;
  narrow.in_features = 32;
  args.parts = &narrow;
  args.rows = 4;
  Text parts_error;
  const abi::Status status = matrix.plan().packed_bytes > 0
                                 ? plugin.linear().pack(matrix.plan(), &narrow, 1, packed.memory(), parts_error.sink())
                                 : plugin.linear().run(matrix.plan(), args, parts_error.sink());
  EXPECT_EQ(status, abi::Status::invalid_argument);
  EXPECT_NE(parts_error.text.find("in_features 32"), std::string::npos) << parts_error.text;
}

// A NaN or an infinity shows in its own row and nowhere else.
TEST_P(Contract, NotANumberStaysInItsRow) {
  const TestHost host(features());
  const LoadedPlugin plugin(variant().plugin, host, variant().options);
  for (const abi::WeightFormat format : variant().formats) {
    std::mt19937_64 random(9);
    const WeightShape shape{format, 40, 160, 32, format == abi::WeightFormat::bf16};
    const std::vector<RandomPart> parts = random_parts(shape, 1, random);
    PlannedMatrix matrix(plugin, {shape, 8}, parts);
    std::vector<float> inputs = random_inputs(8 * shape.in_features, random);
    const std::vector<float> clean = matrix.run(inputs);
    inputs[static_cast<std::size_t>(3 * shape.in_features + 150)] = std::nanf("");
    inputs[static_cast<std::size_t>(5 * shape.in_features + 1)] = HUGE_VALF;
    const std::vector<float> outputs = matrix.run(inputs);
    std::int64_t finite = 0;
    for (std::int64_t row = 0; row < 8; ++row) {
      const auto at = static_cast<std::size_t>(row * shape.out_features);
      if (row != 3 && row != 5) {
        EXPECT_EQ(0, std::memcmp(&outputs[at], &clean[at], static_cast<std::size_t>(shape.out_features) * 4));
        continue;
      }
      for (std::int64_t column = 0; column < shape.out_features; ++column)
        finite += std::isfinite(outputs[at + static_cast<std::size_t>(column)]) ? 1 : 0;
    }
    EXPECT_EQ(finite, 0) << "format " << static_cast<int>(format);
  }
}

FACET_INSTANTIATE_VARIANTS(Contract);

// One packed copy serves the three integer plugins on every instruction set.
TEST(PackedForm, IsSharedByTheIntegerPlugins) {
  for (const abi::WeightFormat format : {abi::WeightFormat::int8, abi::WeightFormat::int4}) {
    for (const bool symmetric : {true, false}) {
      std::mt19937_64 random(11);
      const WeightShape shape{format, 37, 150, 64, symmetric};
      const std::vector<RandomPart> parts = random_parts(shape, 2, random);
      std::vector<abi::WeightView> views;
      for (const RandomPart& part : parts) views.push_back(part.view());
      std::string layout;
      std::vector<std::uint8_t> bytes;
      for (const auto& [isa, features] : isa_levels()) {
        const TestHost host(features);
        for (const char* name : {"w4a16", "w4a8", "dequant_gemm"}) {
          SCOPED_TRACE(std::string(name) + " " + isa);
          const LoadedPlugin plugin(name, host);
          abi::LinearPlan plan{};
          Text error;
          ASSERT_EQ(plugin.linear().plan(linear_problem({shape, 8}), &plan, error.sink()), abi::Status::ok);
          GuardedBytes packed(plan.packed_bytes);
          ASSERT_EQ(plugin.linear().pack(plan, views.data(), static_cast<std::uint32_t>(views.size()), packed.memory(),
                                         error.sink()),
                    abi::Status::ok);
          const std::vector<std::uint8_t> made(packed.data(), packed.data() + plan.packed_bytes);
          if (bytes.empty()) {
            layout = plan.layout;
            bytes = made;
          }
          EXPECT_EQ(layout, plan.layout);
          EXPECT_EQ(bytes, made);
          plugin.linear().release(&plan);
        }
      }
    }
  }
}

// Groups that no segment fits are refused with the number.
TEST(PackedForm, RefusesGroupsThatAreNoMultipleOf32) {
  const TestHost host(cpu_features());
  const LoadedPlugin plugin("w4a16", host);
  Text reasons;
  EXPECT_EQ(plugin.linear().supports(linear_problem({{abi::WeightFormat::int4, 16, 128, 48, true}, 1}), reasons.sink()),
            0u);
  EXPECT_NE(reasons.text.find("group_size 48"), std::string::npos) << reasons.text;
}

}  // namespace
}  // namespace facet::test
