// Every inconsistency of a GPTQ checkpoint is an error of its own that names the place, both values and the cure.
#include <gmock/gmock.h>

#include "gptq_builder.h"

namespace facet::test {
namespace {

using testing::HasSubstr;

// Message and context: the context says what config.json claims.
std::string full_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::checkpoint)) << error.full_text();
    return error.full_text();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

class GptqDamage : public testing::Test {
 protected:
  GptqModuleParts parts(bool symmetric = true) {
    Random random{std::mt19937(11)};
    return random_gptq({16, 128, 32, symmetric}, random);
  }
  // What loading says of these parts under this config.
  std::string refused(const GptqModuleParts& module, const std::string& config, GptqZeros zeros = GptqZeros::minus_one,
                      bool with_indices = true) {
    FileBuilder builder;
    add_gptq(builder, "m", module, zeros, with_indices);
    const GptqFolder folder(builder, config);
    return full_error([&] { folder.load("m", 16, 128); });
  }
  // One tensor replaced by another shape or type.
  std::string refused_part(const std::string& part, const std::string& type, const std::vector<std::int64_t>& shape,
                           std::size_t bytes) {
    const GptqModuleParts module = parts();
    FileBuilder builder;
    for (const char* name : {"qweight", "qzeros", "scales", "g_idx"}) {
      const std::string full = std::string("m.") + name;
      if (name == part) {
        if (!type.empty()) builder.add_bytes(full, type, shape, std::string(bytes, '\0'));
      } else if (full == "m.qweight") {
        builder.add(full, "I32", {16, 16}, pack_nibbles(module.codes, 128, 16, true));
      } else if (full == "m.qzeros") {
        builder.add(full, "I32", {4, 2}, std::vector<std::uint32_t>(8, 0x77777777u));
      } else if (full == "m.scales") {
        builder.add(full, "F16", {4, 16}, module.scales);
      } else {
        builder.add(full, "I32", {128}, module.indices);
      }
    }
    const GptqFolder folder(builder, gptq_config(32, true));
    return full_error([&] { folder.load("m", 16, 128); });
  }
};

TEST_F(GptqDamage, ShapesAndTypes) {
  expect_words(refused_part("qzeros", "I32", {4, 16}, 256),
               {"model.safetensors", "m.qzeros", "[4, 16]", "[4, 2]", "int4 symmetric g32", "config.json"});
  expect_words(refused_part("qzeros", "I32", {2, 2}, 16), {"m.qzeros", "[2, 2]", "[4, 2]"});
  expect_words(refused_part("qzeros", "", {}, 0), {"m.qzeros", "missing"});
  expect_words(refused_part("scales", "F16", {16, 4}, 128), {"m.scales", "[16, 4]", "[4, 16]"});
  expect_words(refused_part("scales", "I32", {4, 16}, 256), {"m.scales", "I32", "F16"});
  expect_words(refused_part("scales", "", {}, 0), {"m.scales", "missing"});
  // As another layout (codes packed along the outputs) would have it.
  expect_words(refused_part("qweight", "I32", {128, 2}, 1024), {"m.qweight", "[128, 2]", "[16, 16]"});
  expect_words(refused_part("qweight", "F32", {16, 16}, 1024), {"m.qweight", "F32", "I32"});
  expect_words(refused_part("g_idx", "I32", {64}, 256), {"m.g_idx"});
  expect_words(refused_part("g_idx", "I64", {128}, 1024), {"m.g_idx", "I64", "I32 [in_features]"});
  expect_words(refused_part("g_idx", "I32", {2, 64}, 512), {"m.g_idx", "[2, 64]"});
}

TEST_F(GptqDamage, WrongGroupSize) {
  EXPECT_THAT(refused(parts(), gptq_config(64, true), GptqZeros::minus_one, false), HasSubstr("[2, 2]"));
  expect_words(refused(parts(), gptq_config(64, true)), {"m.g_idx", "group 2", "0..1", "group_size"});
  expect_words(refused(parts(), gptq_config(16, true)), {"m.g_idx", "group 0", "more than 16", "group_size 16"});
}

TEST_F(GptqDamage, GroupIndices) {
  for (const std::int32_t wrong : {4, -1, 2'000'000'000}) {
    GptqModuleParts module = parts();
    module.indices[77] = wrong;
    expect_words(refused(module, gptq_config(32, true, "\"desc_act\":true")),
                 {"m.g_idx", "input 77", fmt::format("group {}", wrong), "0..3"});
  }
  GptqModuleParts crowded = parts();
  crowded.indices[127] = 0;
  expect_words(refused(crowded, gptq_config(32, true, "\"desc_act\":true")),
               {"m.g_idx", "group 0", "more than 32", "input 127"});
  GptqModuleParts zeroed = parts();
  zeroed.indices.assign(128, 0);
  expect_words(refused(zeroed, gptq_config(32, true, "\"desc_act\":false")), {"m.g_idx", "more than 32"});

  GptqModuleParts scattered = parts();
  std::swap(scattered.indices[3], scattered.indices[100]);
  expect_words(refused(scattered, gptq_config(32, true, "\"desc_act\":false")),
               {"m.g_idx", "input 3", "group 3", "have 0", "desc_act false", "set desc_act to true"});
  expect_words(refused(parts(), gptq_config(32, true, "\"desc_act\":true"), GptqZeros::minus_one, false),
               {"m.qweight", "desc_act true", "m.g_idx", "set desc_act to false"});
}

TEST_F(GptqDamage, ZeroPointsOfTheOtherConvention) {
  expect_words(refused(parts(), gptq_config(32, true), GptqZeros::plain),
               {"m.qzeros", "group 0, output 0", "is 9", "have 8", "'gptq'", "looks like 'gptq_v2'"});
  expect_words(refused(parts(), gptq_config(32, true, R"("checkpoint_format":"gptq_v2")")),
               {"m.qzeros", "is 7", "looks like 'gptq'"});
  GptqModuleParts module = parts();
  module.zeros[37] = 3;
  expect_words(refused(module, gptq_config(32, true)), {"m.qzeros", "group 2, output 5", "is 3", "sym to false"});
}

TEST_F(GptqDamage, Values) {
  GptqModuleParts module = parts();
  module.scales[20] = 0x7c00;
  expect_words(refused(module, gptq_config(32, true)), {"m.scales", "[1, 4]", "inf"});
  module.scales[20] = 0x7e00;
  expect_words(refused(module, gptq_config(32, true)), {"m.scales", "[1, 4]", "nan"});
}

TEST_F(GptqDamage, ConfigAndFilesDisagree) {
  expect_words(refused(parts(), gptq_config(32, true, R"("dynamic":{"-:m$":{}})")),
               {"m.qweight", "dynamic", "excludes"});
  expect_words(refused(parts(), R"({"quantization_config":{"quant_method":"compressed-tensors",
      "format":"pack-quantized","config_groups":{"W4A16":["Linear"]}}})"),
               {"m.weight_packed", "missing"});
  FileBuilder both;
  add_gptq(both, "m", parts(), GptqZeros::minus_one)
      .add<std::uint16_t>("m.weight", "BF16", {16, 128}, std::vector<std::uint16_t>(2048));
  const GptqFolder folder(both, gptq_config(32, true));
  expect_words(error_of([&] { folder.load("m", 16, 128); }), {"m.weight", "m.qweight", "remove one"});
  const GptqFolder dense(
      FileBuilder().add<std::uint16_t>("m.weight", "BF16", {16, 128}, std::vector<std::uint16_t>(2048)),
      gptq_config(32, true));
  expect_words(error_of([&] { dense.load("m", 16, 128); }), {"config.json", "no tensor", ".qweight"});
  FileBuilder headless;
  add_gptq(headless, "m", parts(), GptqZeros::minus_one);
  const GptqFolder no_head(headless, gptq_config(32, true, R"("lm_head":true)"));
  expect_words(error_of([&] { no_head.load("m", 16, 128); }),
               {"config.json", "lm_head is true", "no tensor lm_head.qweight", "set lm_head to false"});
  add_gptq(headless, "lm_head", parts(), GptqZeros::minus_one);
  const GptqFolder with_head(headless, gptq_config(32, true, R"("lm_head":true)"));
  EXPECT_EQ(with_head.load("lm_head", 16, 128).out_features(), 16);
  FileBuilder table;
  add_gptq(table, "model.embed_tokens", parts(), GptqZeros::minus_one);
  const GptqFolder embedding(table, gptq_config(32, true));
  expect_words(error_of([&] { embedding.load("m", 16, 128); }), {"embed_tokens.qweight", "without the embedding"});
}

TEST_F(GptqDamage, TruncatedFile) {
  FileBuilder builder;
  add_gptq(builder, "m", parts(), GptqZeros::minus_one);
  const std::string whole = builder.build();
  for (const std::size_t cut : {std::size_t{1}, std::size_t{512}, whole.size() / 2}) {
    const TempFolder folder;
    write_file(folder / "config.json", gptq_config(32, true));
    write_file(folder / "model.safetensors", whole.substr(0, whole.size() - cut));
    expect_words(error_of([&] { Checkpoint::open(folder.path()); }), {"model.safetensors"});
  }
}

TEST(GptqConfig, RefusalsNameTheField) {
  const auto refused = [](const std::string& fields) {
    return error_of([&] {
      parse_quantization_config(R"({"quantization_config":{"quant_method":"gptq")" + fields + "}}", "dir/config.json");
    });
  };
  const std::string base = R"(,"bits":4,"group_size":32)";
  for (const char* bits : {"2", "3", "8", "\"4\"", "4.5"}) {
    expect_words(refused(fmt::format(R"(,"group_size":32,"bits":{})", bits)),
                 {"dir/config.json", fmt::format("bits is {}", bits), "supported is 4"});
  }
  EXPECT_THAT(refused(R"(,"bits":4)"), HasSubstr("group_size is missing"));
  EXPECT_THAT(refused(R"(,"group_size":32)"), HasSubstr("bits is missing"));
  for (const char* size : {"0", "-2", "1.5", "\"32\""})
    EXPECT_THAT(refused(fmt::format(R"(,"bits":4,"group_size":{})", size)),
                HasSubstr(fmt::format("group_size is {}", size)));
  EXPECT_THAT(refused(base + R"(,"sym":"yes")"), HasSubstr("sym must be true or false, found \"yes\""));
  EXPECT_THAT(refused(base + R"(,"desc_act":1)"), HasSubstr("desc_act must be true or false, found 1"));
  expect_words(refused(base + R"(,"checkpoint_format":"marlin")"), {"checkpoint_format is 'marlin'", "'gptq_v2'"});
  expect_words(refused(base + R"(,"checkpoint_format":2)"), {"checkpoint_format is '2'"});
  expect_words(refused(base + R"(,"checkpoint_format":"gptq","format":"gptq_v2")"), {"'gptq'", "'gptq_v2'", "equal"});
  EXPECT_THAT(refused(base + R"(,"is_marlin_format":true)"), HasSubstr("is_marlin_format"));
  EXPECT_THAT(refused(base + R"(,"pack_dtype":"int64")"), HasSubstr("pack_dtype is \"int64\""));
  EXPECT_THAT(refused(base + R"(,"rotation":"hadamard")"), HasSubstr("rotation is \"hadamard\""));
  EXPECT_THAT(refused(base + R"(,"adapter":{"name":"lora"})"), HasSubstr("adapter"));
  EXPECT_THAT(refused(base + R"(,"dynamic":{"+:x":{"bits":8}})"), HasSubstr("dynamic.+:x.bits is 8"));
  EXPECT_THAT(refused(base + R"(,"dynamic":{"+:(a+)+$":{}})"), HasSubstr("too long to match"));
  EXPECT_THAT(refused(base + R"(,"dynamic":{"+:(":{}})"), HasSubstr("+:("));
  EXPECT_THAT(refused(base + R"(,"dynamic":{"x":4})"), HasSubstr("dynamic.x must be an object"));
  EXPECT_THAT(refused(base + R"(,"dynamic":{"x":{"format":"gptq_v2"}})"), HasSubstr("'gptq_v2'"));
  // All problems at once.
  expect_words(refused(R"(,"bits":3,"group_size":0,"checkpoint_format":"x")"), {"bits is 3", "group_size is 0", "'x'"});
}

TEST(GptqConfig, WhatTheRulesSay) {
  const QuantizationConfig config = parse_quantization_config(
      R"({"text_config":{"quantization_config":{"quant_method":"gptq","bits":4,"group_size":128,"sym":false,"desc_act":true,
          "dynamic":{"b.*":{"group_size":64},"-:a.*":{},"+:a.*":{"sym":true},"model\\.x":{"group_size":-1}}}}})");
  ASSERT_TRUE(config.quantized());
  const GptqSettings& settings = *config.gptq;
  EXPECT_EQ(settings.zeros, GptqZeros::minus_one);
  EXPECT_FALSE(settings.whole_word_zeros);
  EXPECT_EQ(settings.settings_for("c").scheme, (QuantizationScheme{4, false, 128}));
  EXPECT_EQ(settings.settings_for("c").activation_order, true);
  EXPECT_EQ(settings.settings_for("b").scheme, (QuantizationScheme{4, false, 64}));
  EXPECT_TRUE(settings.settings_for("ab").excluded) << "the order of the file counts, not that of the alphabet";
  EXPECT_EQ(settings.settings_for("model.language_model.x").scheme.group_size, -1);
}

}  // namespace
}  // namespace facet::test
