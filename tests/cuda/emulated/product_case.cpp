#include "product_case.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace facet::test {

using abi::DType;
using abi::LinearRole;
using abi::WeightFormat;

std::uint64_t first_seed() {
  const char* given = std::getenv("FACET_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

std::string to_string(const ProductCase& product) {
  const WeightShape& shape = product.shape;
  return "rows " + std::to_string(product.rows) + ", in " + std::to_string(shape.in_features) + ", out " +
         std::to_string(shape.out_features) + (shape.format == WeightFormat::int8 ? ", int8" : ", int4") + ", group " +
         std::to_string(shape.group_size) + (shape.symmetric ? "" : ", asymmetric") +
         (product.output == DType::f32 ? ", f32" : ", bf16") + ", padding " + std::to_string(product.padding) +
         (product.role == LinearRole::gate_up ? ", gate" : "") + (product.fusions != 0 ? " fused" : "");
}

ProductCase random_case(std::int64_t out_features, std::int64_t in_features, std::int64_t rows,
                        std::mt19937_64& random) {
  ProductCase made;
  made.rows = rows;
  made.shape = {random() % 3 == 0 ? WeightFormat::int8 : WeightFormat::int4, out_features, in_features, 128, true};
  const std::int64_t groups[] = {32, 64, 128, in_features};
  made.shape.group_size = pick(groups, random);
  if (made.shape.format == WeightFormat::int4) made.shape.symmetric = random() % 2 == 0;
  made.output = random() % 2 == 0 ? DType::bf16 : DType::f32;
  made.padding = random() % 4 == 0 ? 5 : 8;
  if (out_features % 2 == 0 && random() % 3 == 0) {
    made.role = LinearRole::gate_up;
    if (random() % 3 != 0) made.fusions = abi::kFuseGeluGate;
  }
  return made;
}

DeviceProblem device_problem_of(const ProductCase& product) {
  return {product.shape, product.max_rows, product.output, product.role, product.fusions, product.min_rows};
}

std::vector<RandomPart> case_parts(const ProductCase& product, std::mt19937_64& random) {
  if (product.role != LinearRole::gate_up)
    return random_parts(product.shape, 1 + static_cast<int>(random() % 3), random);
  WeightShape half = product.shape;
  half.out_features /= 2;
  std::vector<RandomPart> parts;
  for (int i = 0; i < 2; ++i) parts.emplace_back(half, random);
  return parts;
}

Expected case_result(const ProductCase& product, const std::vector<float>& inputs,
                     const std::vector<RandomPart>& parts) {
  Expected plain = expected_product(inputs, parts, product.shape, product.rounding);
  if ((product.fusions & abi::kFuseGeluGate) == 0) return plain;
  return gated(plain, static_cast<std::size_t>(product.rows));
}

void expect_product(const LoadedPlugin& plugin, const ProductCase& product, std::mt19937_64& random) {
  emulated::set_seed(random());
  const std::uint64_t before = emulated::runs_done();
  const std::vector<RandomPart> parts = case_parts(product, random);
  const std::vector<float> inputs = bf16_inputs(product.rows * product.shape.in_features, random);
  DeviceMatrix matrix(plugin, device_problem_of(product), parts);
  expect_close(matrix.run(inputs, product.padding), case_result(product, inputs, parts), product.output);
  EXPECT_EQ(emulated::runs_done(), before + 4);
}

}  // namespace facet::test
