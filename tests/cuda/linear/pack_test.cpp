// The packed form, read back on the host by the rules of its header; needs no device.
#include <gtest/gtest.h>

#include <cuda_fp16.h>

#include <cstring>

#include "../../linear/random_weights.h"
#include "quant_gptq/cuda/rows32/pack.h"

namespace facet::test {
namespace {

using abi::WeightFormat;

// Code of one weight of a packed unit, from the text of layout.h.
int packed_code(const linear::Rows32& shape, const std::uint8_t* chunk, int row, int input) {
  const std::uint8_t* tile = chunk + row / 16 * shape.code_bytes / 2;
  const int s = input / 16;
  const int inside = input % 16;
  const int t = inside % 8 / 2;
  const int byte = inside / 8 + 2 * (inside % 2);
  const int lane = row % 8 * 4 + t;
  const int high = row % 16 / 8;
  if (shape.bits == 8) return tile[4 * (((s / 2) * 32 + lane) * 4 + 2 * (s % 2) + high) + byte];
  return (tile[4 * (((s / 4) * 32 + lane) * 4 + s % 4) + byte] >> (4 * high)) & 15;
}

double packed_weight(const linear::Rows32& shape, const std::uint8_t* unit, int row, std::int64_t column,
                     float factor) {
  const std::uint8_t* chunk = unit + column / 128 * shape.chunk_bytes;
  const int input = static_cast<int>(column % 128);
  const int segment = input / (128 / shape.segments);
  const int slot = segment * 32 + row % 8 * 4 + row / 16 * 2 + row % 16 / 8;
  __half scale;
  std::memcpy(&scale, chunk + shape.code_bytes + 2 * slot, sizeof scale);
  const int mean = shape.bits == 4 ? 8 : 128;
  const int zero = shape.asymmetric != 0 ? chunk[shape.code_bytes + shape.segments * 64 + slot] : mean;
  return (packed_code(shape, chunk, row, input) - zero) * double{__half2float(scale)} * double{factor};
}

TEST(CudaPack, KeepsEveryWeightExactly) {
  const std::uint64_t base = std::random_device{}();
  for (std::uint64_t seed = base; seed < base + 30; ++seed) {
    std::mt19937_64 random(seed);
    WeightShape shape{random() % 3 == 0 ? WeightFormat::int8 : WeightFormat::int4, 0, 0, 0, random() % 2 == 0};
    shape.in_features = std::vector<std::int64_t>{8, 127, 192, 1025}[random() % 4];
    shape.group_size = std::vector<std::int64_t>{32, 64, 96, 128, shape.in_features}[random() % 5];
    const bool gate = random() % 2 == 0;
    const std::int64_t rows[] = {1 + static_cast<std::int64_t>(random() % 60),
                                 1 + static_cast<std::int64_t>(random() % 60)};
    std::vector<RandomPart> parts;
    std::vector<abi::WeightView> views;
    for (int i = 0; i < 2; ++i) {
      shape.out_features = gate ? rows[0] : rows[i];
      parts.emplace_back(shape, random);
    }
    for (const RandomPart& part : parts) views.push_back(part.view());
    const std::int64_t first_rows = views[0].out_features;
    abi::LinearProblem problem{};
    problem.weight = shape.format;
    problem.role = gate ? abi::LinearRole::gate_up : abi::LinearRole::qkv;
    problem.out_features = first_rows + views[1].out_features;
    problem.in_features = shape.in_features;
    problem.group_size = shape.group_size;
    problem.symmetric = shape.symmetric ? 1 : 0;
    const linear::Rows32 packed = linear::rows32_shape(problem);
    ASSERT_EQ(packed.gate, gate ? 1 : 0);
    const float factor = linear::rows32_factor(views);
    std::vector<std::uint8_t> unit(static_cast<std::size_t>(packed.chunks * packed.chunk_bytes), 0xff);
    std::int64_t seen = 0;
    for (int u = 0; u < packed.units; ++u) {
      linear::rows32_pack_unit(packed, views, u, factor, unit.data());
      for (int row = 0; row < 32; ++row) {
        std::int64_t source = gate ? u * 16 + row % 16 + (row < 16 ? 0 : first_rows) : u * 32 + row;
        if (gate && u * 16 + row % 16 >= first_rows) source = problem.out_features;
        const bool known = source < problem.out_features;
        const RandomPart& part = parts[known && source >= first_rows ? 1 : 0];
        const std::int64_t part_row = known && source >= first_rows ? source - first_rows : source;
        seen += known ? 1 : 0;
        for (std::int64_t column = 0; column < shape.in_features; ++column)
          ASSERT_EQ(packed_weight(packed, unit.data(), row, column, factor),
                    known ? part.weight(part_row, column) : 0.0)
              << "seed " << seed << ", unit " << u << ", row " << row << ", column " << column;
      }
    }
    EXPECT_EQ(seen, problem.out_features);
  }
}

}  // namespace
}  // namespace facet::test
