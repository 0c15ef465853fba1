#include <gtest/gtest.h>

#include "../linear/device_run.h"
#include "machine.h"

namespace facet::test {
namespace {
using abi::DType;
using abi::WeightFormat;
TEST(EmulatedWide, Smoke) {
  const TestHost host(0, 2);
  emulated::device().multiprocessors = 7;
  emulated::set_seed(1);
  const LoadedPlugin plugin("w4a16_stream", host);
  std::mt19937_64 random(1);
  WeightShape shape{WeightFormat::int4, 256, 256, 128, true};
  const std::vector<RandomPart> parts = device_parts(shape, 2, random);
  const std::vector<float> inputs = bf16_inputs(8 * shape.in_features, random);
  DeviceMatrix matrix(plugin, {shape, 8, DType::f32}, parts);
  expect_close(matrix.run(inputs), expected_product(inputs, parts, shape, {.weight = 0, .segment = 0x1p-14}),
               DType::f32);
}
}  // namespace
}  // namespace facet::test
