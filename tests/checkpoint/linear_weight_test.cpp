// Cases 22, 23 and 26: every layout against an independent decoder, with remainders in every packed axis.
#include "facet/checkpoint/linear_weight.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>

#include "facet/checkpoint/float_bits.h"
#include "file_builder.h"
#include "weight_helpers.h"

namespace facet::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

QuantizationConfig all(QuantizationScheme scheme) {
  QuantizationConfig config;
  config.groups.push_back({"group_0", {"Linear"}, scheme});
  return config;
}

FileBuilder golden(bool with_zero) {
  FileBuilder builder;
  builder.add<std::uint32_t>("m.weight_packed", "I32", {2, 1}, {0x76543210u, 0xfedcba98u})
      .add<float>("m.weight_scale", "F32", {2, 1}, {1.0f, 2.0f});
  if (with_zero) builder.add<std::uint32_t>("m.weight_zero_point", "I32", {1, 1}, {0x76543210u});
  return builder.add<std::int64_t>("m.weight_shape", "I64", {2}, {2, 8});
}

TEST(LinearWeight, GoldenWord) {
  const LinearWeight symmetric = load_linear(Folder(golden(false)).open(), all({4, true, 32}), "m", 2, 8);
  EXPECT_THAT(row_of(symmetric, 0), ElementsAre(-8, -7, -6, -5, -4, -3, -2, -1));
  EXPECT_THAT(row_of(symmetric, 1), ElementsAre(0, 2, 4, 6, 8, 10, 12, 14));
  EXPECT_EQ(symmetric.view().zeros, nullptr);
  // The zero codes of rows 0 and 1 are the two lowest nibbles of the same word.
  const LinearWeight asymmetric = load_linear(Folder(golden(true)).open(), all({4, false, 32}), "m", 2, 8);
  EXPECT_EQ(asymmetric.view().zeros[0], 0);
  EXPECT_EQ(asymmetric.view().zeros[1], 1);
  EXPECT_THAT(row_of(asymmetric, 0), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(row_of(asymmetric, 1), ElementsAre(14, 16, 18, 20, 22, 24, 26, 28));
}

TEST(LinearWeight, EveryFourLanePattern) {
  // One word a pattern: lanes 0..3 take all 65536 values, lanes 4..7 their complement.
  std::vector<std::uint32_t> words(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) words[i] = i | (~i << 16);
  std::vector<float> scales(65536, 1.0f);
  const LinearWeight weight =
      LinearWeight::from_parts(abi::WeightFormat::int4, 65536, 8, 8, words.data(), 4, scales, {});
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const std::vector<float> values = row_of(weight, i);
    for (unsigned lane = 0; lane < 8; ++lane) {
      const auto code = static_cast<int>((words[i] / (1u << (4 * lane))) % 16);
      ASSERT_EQ(values[lane], static_cast<float>(code - 8)) << "word " << words[i] << " lane " << lane;
    }
  }
}

// The library's own files, decoded by the library.
TEST(LinearWeight, FilesOfTheCompressedTensorsLibrary) {
  const std::filesystem::path directory = std::filesystem::path(FACET_SOURCE_DIR) / "tests/data/compressed_tensors";
  const TempFolder folder;
  for (const char* name : {"model.safetensors", "config.json"})
    std::filesystem::copy_file(directory / name, folder / name);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const QuantizationConfig config = parse_quantization_config(checkpoint.config_json());
  const SafetensorsFile expected = SafetensorsFile::open(directory / "expected.safetensors");
  ASSERT_EQ(expected.tensors().size(), 9u);
  for (const Tensor& tensor : expected.tensors()) {
    SCOPED_TRACE(tensor.name);
    const LinearWeight weight = load_linear(checkpoint, config, tensor.name, tensor.shape[0], tensor.shape[1]);
    for (std::int64_t row = 0; row < tensor.shape[0]; ++row) {
      const std::vector<float> values = row_of(weight, row);
      std::vector<float> reference(values.size());
      std::memcpy(reference.data(), tensor.data + row * tensor.shape[1] * 4, reference.size() * 4);
      ASSERT_EQ(values, reference) << "row " << row;
    }
  }
}

struct Shape {
  std::int64_t out, in, group;
  int bits;
  bool symmetric;
};

// Builds a module from random codes by the definition of the layout, and the values that it means.
std::vector<std::vector<double>> random_module(const Shape& shape, Random& random, FileBuilder& builder) {
  const std::int64_t group = shape.group < 0 ? shape.in : shape.group;
  const std::int64_t groups = (shape.in + group - 1) / group;
  const std::int64_t per_word = 32 / shape.bits, words = (shape.in + per_word - 1) / per_word;
  const std::int64_t zero_rows = (shape.out + per_word - 1) / per_word;
  const std::uint32_t limit = 1u << shape.bits;
  std::vector<std::uint32_t> packed(static_cast<std::size_t>(shape.out * words)),
      zeros(static_cast<std::size_t>(zero_rows * groups));
  std::vector<std::uint16_t> scales;
  std::vector<std::vector<double>> values(static_cast<std::size_t>(shape.out));
  std::vector<std::uint32_t> zero_codes;
  for (std::int64_t i = 0; i < shape.out * groups; ++i) {
    scales.push_back(float_to_bf16(0.01f + static_cast<float>(random() % 1000) * 1e-4f));
    zero_codes.push_back(shape.symmetric ? limit / 2 : random() % limit);
    const std::int64_t row = i / groups;
    zeros[static_cast<std::size_t>(row / per_word * groups + i % groups)] |= zero_codes.back()
                                                                             << (shape.bits * (row % per_word));
  }
  for (std::int64_t row = 0; row < shape.out; ++row) {
    for (std::int64_t i = 0; i < words * per_word; ++i) {
      const std::uint32_t code = random() % limit;  // junk past the last column as well
      packed[static_cast<std::size_t>(row * words + i / per_word)] |= code << (shape.bits * (i % per_word));
      if (i >= shape.in) continue;
      const auto cell = static_cast<std::size_t>(row * groups + i / group);
      values[static_cast<std::size_t>(row)].push_back((static_cast<double>(code) - zero_codes[cell]) *
                                                      static_cast<double>(bf16_to_float(scales[cell])));
    }
  }
  builder.add("m.weight_packed", "I32", {shape.out, words}, packed)
      .add("m.weight_scale", "BF16", {shape.out, groups}, scales);
  if (!shape.symmetric) builder.add("m.weight_zero_point", "I32", {zero_rows, groups}, zeros);
  builder.add<std::int64_t>("m.weight_shape", "I64", {2}, {shape.out, shape.in});
  return values;
}

TEST(LinearWeight, EveryShapeAndGroup) {
  constexpr unsigned kSeed = 20250711;
  Random random{std::mt19937(kSeed)};
  for (const std::int64_t in : {8, 64, 120, 192, 1025}) {
    for (const std::int64_t out : {1, 8, 13, 48}) {
      for (const std::int64_t group : {-1, 32, 64, 128}) {
        for (const int variant : {0, 1, 2, 3}) {
          const Shape shape{out, in, group, variant < 2 ? 4 : 8, variant % 2 == 0};
          SCOPED_TRACE(testing::Message() << "seed " << kSeed << " out " << out << " in " << in << " group " << group
                                          << " bits " << shape.bits << " symmetric " << shape.symmetric);
          FileBuilder builder;
          const auto expected = random_module(shape, random, builder);
          const Folder folder(builder);
          const LinearWeight weight =
              load_linear(folder.open(), all({shape.bits, shape.symmetric, group}), "m", out, in);
          for (std::int64_t row = 0; row < out; ++row) {
            std::vector<float> values(static_cast<std::size_t>(in) + 2, kNaN);
            dequantize_row(weight.view(), row, values.data() + 1);
            ASSERT_TRUE(std::isnan(values.front()) && std::isnan(values.back()));
            for (std::int64_t i = 0; i < in; ++i) {
              // A product of an 8-bit and a 9-bit integer mantissa is exact in float.
              ASSERT_EQ(values[static_cast<std::size_t>(i) + 1],
                        static_cast<float>(expected[static_cast<std::size_t>(row)][static_cast<std::size_t>(i)]));
            }
          }
        }
      }
    }
  }
}

TEST(LinearWeight, DenseFormats) {
  const Folder folder(FileBuilder()
                          .add<std::uint16_t>("b.weight", "BF16", {1, 2}, {0x3f80, 0xbf00})
                          .add<float>("exact.weight", "F32", {1, 2}, {1.5f, -0.25f})
                          .add<float>("inexact.weight", "F32", {1, 2}, {1.5f, 0.1f})
                          .add<std::uint16_t>("h.weight", "F16", {1, 2}, {0x3c00, 0x3800})
                          .add<std::int32_t>("i.weight", "I32", {1, 2}, {1, 2}));
  const Checkpoint checkpoint = folder.open();
  const QuantizationConfig none;
  const LinearWeight bf16 = load_linear(checkpoint, none, "b", 1, 2);
  EXPECT_TRUE(bf16.mapped());
  EXPECT_EQ(bf16.view().values, checkpoint.find("b.weight")->data);
  EXPECT_EQ(bf16.view().row_bytes, 4);
  EXPECT_EQ(bf16.view().group_size, 0);
  EXPECT_EQ(bf16.bytes(), 4u);
  EXPECT_THAT(row_of(bf16, 0), ElementsAre(1.0f, -0.5f));
  EXPECT_THAT(row_of(load_linear(checkpoint, none, "exact", 1, 2), 0), ElementsAre(1.5f, -0.25f));
  EXPECT_THAT(row_of(load_linear(checkpoint, none, "h", 1, 2), 0), ElementsAre(1.0f, 0.5f));
  expect_words(error_of([&] { load_linear(checkpoint, none, "inexact", 1, 2); }),
               {"inexact.weight", "[0, 1]", "0.1", "bf16"});
  expect_words(error_of([&] { load_linear(checkpoint, none, "i", 1, 2); }), {"i.weight", "I32", "BF16"});
  expect_words(error_of([&] { load_linear(checkpoint, none, "b", 2, 1); }), {"b.weight", "[1, 2]", "[2, 1]"});
  expect_words(error_of([&] { load_linear(checkpoint, none, "c", 2, 1); }), {"c.weight", "missing"});
  EXPECT_THAT(error_of([&] { load_linear(checkpoint, none, "b", 0, 2); }), HasSubstr("[0, 2]"));
}

TEST(LinearWeight, OutlivesItsCheckpointAndCopies) {
  LinearWeight copy = [] {
    const Folder folder(golden(true));
    const LinearWeight weight = load_linear(folder.open(), all({4, false, 32}), "m", 2, 8);
    return weight;
  }();
  const LinearWeight moved = std::move(copy);
  EXPECT_THAT(row_of(moved, 0), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(LinearWeight, MisalignedCodesAreCopied) {
  FileBuilder builder;
  builder.add<std::uint8_t>("pad", "U8", {1}, {1})
      .add<std::uint32_t>("m.weight_packed", "I32", {1, 1}, {0x76543210u})
      .add<std::uint16_t>("m.weight_scale", "BF16", {1, 1}, {0x3f80})
      .add<std::int64_t>("m.weight_shape", "I64", {2}, {1, 8});
  const Folder folder(builder);
  const LinearWeight weight = load_linear(folder.open(), all({4, true, -1}), "m", 1, 8);
  EXPECT_FALSE(weight.mapped());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weight.view().values) % 4, 0u);
  EXPECT_THAT(row_of(weight, 0), ElementsAre(-8, -7, -6, -5, -4, -3, -2, -1));
}

TEST(LinearWeight, FilesAndConfigMustAgree) {
  const auto load = [](const FileBuilder& builder, const QuantizationScheme& scheme) {
    const Folder folder(builder);
    return error_of([&] { load_linear(folder.open(), all(scheme), "m", 2, 8); });
  };
  expect_words(load(golden(true), {4, true, 32}), {"m.weight_zero_point", "symmetric"});
  expect_words(load(golden(false), {4, false, 32}), {"m.weight_zero_point", "missing"});
  expect_words(load(golden(false), {8, true, 32}), {"m.weight_packed", "[2, 1]", "[2, 2]"});
  expect_words(load(golden(false), {4, true, 4}), {"m.weight_scale", "[2, 1]", "[2, 2]"});
  expect_words(
      load(golden(false).add<std::int32_t>("m.weight_g_idx", "I32", {8}, std::vector<std::int32_t>(8)), {4, true, 32}),
      {"m.weight_g_idx", "activation order"});
  expect_words(
      load(FileBuilder().add<std::uint16_t>("m.weight", "BF16", {2, 8}, std::vector<std::uint16_t>(16)), {4, true, 32}),
      {"m.weight", "int4 symmetric g32", "ignore"});
  const Folder packed(golden(false));
  expect_words(error_of([&] { load_linear(packed.open(), {}, "m", 2, 8); }), {"m.weight_packed", "not quantized"});

  FileBuilder wrong_shape;
  wrong_shape.add<std::uint32_t>("m.weight_packed", "I32", {2, 1}, {0, 0})
      .add<float>("m.weight_scale", "F32", {2, 1}, {1.0f, std::numeric_limits<float>::infinity()});
  expect_words(load(wrong_shape, {4, true, 32}), {"m.weight_shape", "missing"});
  FileBuilder infinite = wrong_shape;
  expect_words(load(infinite.add<std::int64_t>("m.weight_shape", "I64", {2}, {2, 8}), {4, true, 32}),
               {"m.weight_scale", "[1, 0]", "inf"});
  expect_words(load(wrong_shape.add<std::int32_t>("m.weight_shape", "I32", {2}, {2, 7}), {4, true, 32}),
               {"m.weight_shape", "[2, 7]", "[2, 8]"});
}

TEST(LinearWeight, PartsAreChecked) {
  const std::vector<std::uint32_t> words(2);
  const auto make = [&](std::int64_t group, std::int64_t row_bytes, std::size_t scales, std::size_t zeros) {
    return error_of([&] {
      LinearWeight::from_parts(abi::WeightFormat::int4, 2, 8, group, words.data(), row_bytes,
                               std::vector<float>(scales), std::vector<std::uint8_t>(zeros));
    });
  };
  EXPECT_THAT(make(8, 4, 1, 0), HasSubstr("1 scales"));
  EXPECT_THAT(make(8, 4, 2, 1), HasSubstr("1 zeros"));
  EXPECT_THAT(make(8, 3, 2, 0), HasSubstr("3 bytes"));
  EXPECT_THAT(make(0, 4, 0, 0), HasSubstr("group size 0"));
}

TEST(FloatBits, ConversionsAreExact) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float bf16 = bf16_to_float(half);
    if (!std::isnan(bf16)) {
      EXPECT_EQ(float_to_bf16(bf16), half);
    } else {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(bf16))));
    }
    const int exponent = static_cast<int>((bits >> 10) & 31), mantissa = static_cast<int>(bits & 1023);
    const double sign = bits & 0x8000 ? -1 : 1;
    const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent != 31) {
      EXPECT_EQ(static_cast<double>(f16_to_float(half)), sign * value) << bits;
    }
  }
  EXPECT_TRUE(std::isinf(f16_to_float(0x7c00)));
  EXPECT_TRUE(std::isnan(f16_to_float(0x7c01)));
  EXPECT_EQ(float_to_bf16(1.00390625f), 0x3f80);  // halfway: to even
  EXPECT_EQ(float_to_bf16(1.01171875f), 0x3f82);  // halfway: to even
}

}  // namespace
}  // namespace facet::test
