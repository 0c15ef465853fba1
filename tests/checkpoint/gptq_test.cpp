// GPTQ checkpoints against the files of another writer and against an independent decoder.
#include <gmock/gmock.h>

#include <algorithm>

#include "gptq_builder.h"

namespace facet::test {
namespace {

using testing::ElementsAre;

class GptqLibraryFiles : public testing::TestWithParam<const char*> {};

// Symmetric, asymmetric (zero codes 0 to 15), short last groups, one group a row, mixed settings, an excluded module,
// and activation order; packed and decoded by GPTQModel.
TEST_P(GptqLibraryFiles, LoadBitForBit) {
  const std::filesystem::path directory = std::filesystem::path(FACET_SOURCE_DIR) / "tests/data" / GetParam();
  const TempFolder folder;
  for (const char* name : {"model.safetensors", "config.json"})
    std::filesystem::copy_file(directory / name, folder / name);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const QuantizationConfig config = read_quantization(checkpoint);
  EXPECT_EQ(to_string(config.gptq->zeros), std::string(GetParam()));
  EXPECT_EQ(config.gptq_modules.size(), 7u);
  EXPECT_EQ(config.scheme_for("model.layers.0.dense_proj"), nullptr);
  const SafetensorsFile expected = SafetensorsFile::open(directory / "expected.safetensors");
  ASSERT_EQ(expected.tensors().size(), 8u);
  for (const Tensor& tensor : expected.tensors()) {
    SCOPED_TRACE(tensor.name);
    const LinearWeight weight = load_linear(checkpoint, config, tensor.name, tensor.shape[0], tensor.shape[1]);
    expect_values(weight, tensor);
  }
  const auto group_of = [&](const std::string& name) {
    return config.scheme_for("model.layers.0." + name)->group_size;
  };
  EXPECT_EQ(group_of("sym_g32"), 32);
  EXPECT_EQ(group_of("asym_g64"), 64);
  EXPECT_EQ(group_of("asym_channel"), -1);
  EXPECT_EQ(group_of("asym_blocks"), 32) << "whole groups that changed places stay groups";
  EXPECT_LT(group_of("asym_order"), 32);
}

INSTANTIATE_TEST_SUITE_P(Conventions, GptqLibraryFiles, testing::Values("gptq", "gptq_v2"));

// Case 22: the order of nibbles in codes and in zero points.
TEST(Gptq, GoldenWord) {
  for (const bool plain : {false, true}) {
    FileBuilder builder;
    builder.add<std::uint32_t>("m.qweight", "I32", {1, 8}, std::vector<std::uint32_t>(8, 0x76543210u))
        .add<std::uint32_t>("m.qzeros", "I32", {1, 1}, {0x76543210u})
        .add<std::uint16_t>("m.scales", "F16", {1, 8}, std::vector<std::uint16_t>(8, 0x3c00));
    const GptqFolder folder(builder,
                            gptq_config(-1, false, plain ? R"("checkpoint_format":"gptq_v2")" : R"("desc_act":false)"));
    const LinearWeight weight = folder.load("m", 8, 8);
    for (std::int64_t n = 0; n < 8; ++n) {
      const auto zero = static_cast<float>(plain ? n : n + 1);
      EXPECT_THAT(row_of(weight, n),
                  ElementsAre(0 - zero, 1 - zero, 2 - zero, 3 - zero, 4 - zero, 5 - zero, 6 - zero, 7 - zero));
    }
  }
}

// Case 26 and remainders in every packed axis.
TEST(Gptq, EveryShapeGroupAndConvention) {
  constexpr unsigned kSeed = 20251129;
  Random random{std::mt19937(kSeed)};
  for (const std::int64_t in : {8, 64, 120, 192, 1025}) {
    for (const std::int64_t out : {1, 8, 13, 48, 199}) {
      for (const std::int64_t group : {-1, 32, 128}) {
        for (const bool symmetric : {false, true}) {
          for (const GptqZeros zeros : {GptqZeros::minus_one, GptqZeros::plain}) {
            SCOPED_TRACE(testing::Message() << "seed " << kSeed << " out " << out << " in " << in << " group " << group
                                            << " symmetric " << symmetric << " " << to_string(zeros));
            const GptqModuleParts parts = random_gptq({out, in, group, symmetric}, random);
            FileBuilder builder;
            add_gptq(builder, "m", parts, zeros, in % 16 == 0);
            const GptqFolder folder(
                builder, gptq_config(group, symmetric, fmt::format("\"checkpoint_format\":\"{}\"", to_string(zeros))));
            const LinearWeight weight = folder.load("m", out, in);
            EXPECT_EQ(weight.view().format, abi::WeightFormat::int4);
            EXPECT_EQ(weight.view().zeros == nullptr, symmetric);
            EXPECT_EQ(weight.view().group_size, group < 0 ? in : group);
            expect_parts(weight, parts);
          }
        }
      }
    }
  }
}

TEST(Gptq, ActivationOrderIsServedExactly) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random{std::mt19937(seed)};
  for (const std::int64_t run : {1, 4, 16, 32}) {
    for (const bool symmetric : {false, true}) {
      GptqModuleParts parts = random_gptq({24, 256, 32, symmetric}, random);
      // Runs of inputs change places as a whole; equal neighbours could only make the common run longer.
      std::vector<std::int64_t> runs(static_cast<std::size_t>(256 / run));
      for (std::size_t i = 0; i < runs.size(); ++i) runs[i] = static_cast<std::int64_t>(i);
      std::shuffle(runs.begin(), runs.end(), random.engine);
      for (std::int64_t i = 0; i < 256; ++i)
        parts.indices[static_cast<std::size_t>(i)] =
            static_cast<std::int32_t>((runs[static_cast<std::size_t>(i / run)] * run + i % run) / 32);
      FileBuilder builder;
      add_gptq(builder, "m", parts, GptqZeros::minus_one);
      const GptqFolder folder(builder, gptq_config(32, symmetric, "\"desc_act\":true"));
      const LinearWeight weight = folder.load("m", 24, 256);
      EXPECT_EQ(weight.view().group_size % run, 0);
      EXPECT_LE(weight.view().group_size, 32);
      expect_parts(weight, parts);
    }
  }
}

TEST(Gptq, TheFirstRuleThatMatchesDecides) {
  Random random{std::mt19937(7)};
  const GptqModuleParts wide = random_gptq({8, 64, 64, true}, random), narrow = random_gptq({8, 64, 16, false}, random);
  FileBuilder builder;
  add_gptq(builder, "model.language_model.layers.0.self_attn.q_proj", wide, GptqZeros::plain);
  add_gptq(builder, "model.language_model.layers.1.self_attn.q_proj", narrow, GptqZeros::plain);
  builder.add<std::uint16_t>("model.language_model.layers.2.self_attn.q_proj.weight", "BF16", {8, 64},
                             std::vector<std::uint16_t>(512, 0x3f80));
  // The vision part is quantized in a way that no text module may be.
  builder.add<std::uint8_t>("model.vision_tower.layers.0.q_proj.qweight", "U8", {3}, {1, 2, 3});
  const GptqFolder folder(builder,
                          gptq_config(64, true,
                                      R"("checkpoint_format":"gptq_v2","dynamic":{"-:model\\.layers\\.2\\..*":{},
                     "+:model\\.layers\\.1\\..*":{"group_size":16,"sym":false},".*\\.1\\..*":{"group_size":8}})"));
  expect_parts(folder.load("model.language_model.layers.0.self_attn.q_proj", 8, 64), wide);
  expect_parts(folder.load("model.language_model.layers.1.self_attn.q_proj", 8, 64), narrow);
  const LinearWeight dense = folder.load("model.language_model.layers.2.self_attn.q_proj", 8, 64);
  EXPECT_EQ(dense.view().format, abi::WeightFormat::bf16);
}

TEST(Gptq, OlderWritersPutTheSettingsBesideConfigJson) {
  Random random{std::mt19937(8)};
  const GptqModuleParts parts = random_gptq({8, 64, 32, true}, random);
  FileBuilder builder;
  add_gptq(builder, "m", parts, GptqZeros::minus_one);
  const GptqFolder folder(builder, "{}");
  expect_words(error_of([&] { folder.load("m", 8, 64); }), {"m.qweight", "quantize_config.json"});
  write_file(folder.folder / "quantize_config.json",
             R"({"bits":4,"group_size":32,"damp_percent":0.01,"desc_act":false,"sym":true,"true_sequential":true})");
  expect_parts(folder.load("m", 8, 64), parts);
  write_file(folder.folder / "quantize_config.json", R"({"bits":8,"group_size":32})");
  expect_words(error_of([&] { folder.load("m", 8, 64); }), {"quantize_config.json", "bits is 8", "4"});
}

TEST(Gptq, AZeroBiasIsNone) {
  Random random{std::mt19937(9)};
  const GptqModuleParts parts = random_gptq({8, 64, 32, true}, random);
  for (const std::uint16_t value : {std::uint16_t{0}, std::uint16_t{1}}) {
    FileBuilder builder;
    add_gptq(builder, "m", parts, GptqZeros::minus_one);
    builder.add<std::uint16_t>("m.bias", "F16", {8}, {0, 0, 0, 0, 0, 0, 0, value});
    const GptqFolder folder(builder, gptq_config(32, true));
    if (value == 0) {
      expect_parts(folder.load("m", 8, 64), parts);
    } else {
      expect_words(error_of([&] { folder.load("m", 8, 64); }), {"m.bias", "bias"});
    }
  }
}

// Which files hold a zero code 0 under "gptq" at all: those of a writer that subtracts from whole words.
TEST(Gptq, ZeroCodeZeroNeedsAKnownWriter) {
  FileBuilder builder;
  builder.add<std::uint32_t>("m.qweight", "I32", {1, 8}, std::vector<std::uint32_t>(8, 0xffffffffu))
      .add<std::uint32_t>("m.qzeros", "I32", {1, 1}, {0x76543210u - 0x11111111u})
      .add<std::uint16_t>("m.scales", "F16", {1, 8}, std::vector<std::uint16_t>(8, 0x3c00));
  const GptqFolder known(builder, gptq_config(-1, false, R"("meta":{"quantizer":["gptqmodel:5.0.0"]})"));
  const LinearWeight weight = known.load("m", 8, 8);
  for (std::int64_t n = 0; n < 8; ++n) EXPECT_EQ(row_of(weight, n)[0], static_cast<float>(15 - n));
  const GptqFolder unknown(builder, gptq_config(-1, false));
  expect_words(error_of([&] { unknown.load("m", 8, 8); }), {"m.qzeros", "output 0", "15", "gptq_v2"});
}

}  // namespace
}  // namespace facet::test
