#include "facet/checkpoint/quantization_config.h"

#include <gmock/gmock.h>

#include "file_builder.h"

namespace facet::test {
namespace {

using testing::HasSubstr;

// A config with one group whose weights and whose top level can be replaced.
std::string config(
    const std::string& weights = R"("num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":128)",
    const std::string& top = R"("quant_method":"compressed-tensors","format":"pack-quantized","ignore":["lm_head"])",
    const std::string& group = R"("targets":["Linear"])") {
  return std::string(R"({"quantization_config":{)") + top + R"(,"config_groups":{"group_0":{)" + group +
         R"(,"weights":{)" + weights + "}}}}}";
}

std::string refused(const std::string& text) {
  return error_of([&] { parse_quantization_config(text, "dir/config.json"); });
}

TEST(QuantizationConfig, AbsentMeansDense) {
  for (const char* text :
       {"{}", R"({"quantization_config":null})", R"({"text_config":{"quantization_config":null}})"}) {
    const QuantizationConfig parsed = parse_quantization_config(text);
    EXPECT_FALSE(parsed.quantized());
    EXPECT_EQ(parsed.scheme_for("model.layers.0.mlp.up_proj"), nullptr);
  }
}

TEST(QuantizationConfig, ClassesCoverLinearLayersOnly) {
  const QuantizationConfig parsed = parse_quantization_config(config());
  ASSERT_NE(parsed.scheme_for("model.layers.0.mlp.up_proj"), nullptr);
  EXPECT_EQ(*parsed.scheme_for("model.layers.0.mlp.up_proj"), (QuantizationScheme{4, true, 128}));
  EXPECT_EQ(parsed.scheme_for("model.embed_tokens"), nullptr);
  EXPECT_EQ(parsed.scheme_for("lm_head"), nullptr);
}

TEST(QuantizationConfig, StrategiesAndDefaults) {
  const auto scheme = [](const std::string& weights) {
    return *parse_quantization_config(config(weights)).scheme_for("x");
  };
  EXPECT_EQ(scheme(R"("num_bits":4,"group_size":32)"), (QuantizationScheme{4, true, 32}));
  EXPECT_EQ(scheme(R"("group_size":-1)"), (QuantizationScheme{8, true, -1}));
  EXPECT_EQ(scheme(R"("num_bits":4,"symmetric":false,"strategy":"channel","group_size":null)"),
            (QuantizationScheme{4, false, -1}));
  EXPECT_EQ(to_string(scheme(R"("num_bits":4,"symmetric":false,"group_size":64,"actorder":"weight")")),
            "int4 asymmetric g64");
}

TEST(QuantizationConfig, MixedSettingsTakeTheMostSpecificTarget) {
  const std::string text =
      R"({"text_config":{"quantization_config":{"quant_method":"compressed-tensors","format":"mixed-precision",
    "ignore":["re:.*vision.*","model.layers.3.mlp.down_proj"],"config_groups":{
    "a":{"targets":["Linear"],"format":"pack-quantized","weights":{"num_bits":4,"group_size":128}},
    "b":{"targets":["re:.*self_attn\\.(q|k)_proj"],"format":"pack-quantized","weights":{"num_bits":8,"group_size":-1}},
    "c":{"targets":["model.layers.1.self_attn.q_proj"],"format":"pack-quantized","weights":{"num_bits":4,"group_size":32}}}}}})";
  const QuantizationConfig parsed = parse_quantization_config(text);
  EXPECT_EQ(parsed.scheme_for("model.layers.0.mlp.up_proj")->group_size, 128);
  EXPECT_EQ(parsed.scheme_for("model.layers.0.self_attn.q_proj")->bits, 8);
  EXPECT_EQ(parsed.scheme_for("model.layers.1.self_attn.q_proj")->group_size, 32);
  // Tools write names of either nesting.
  EXPECT_EQ(parsed.scheme_for("model.language_model.layers.1.self_attn.q_proj")->group_size, 32);
  EXPECT_EQ(parsed.scheme_for("model.language_model.layers.3.mlp.down_proj"), nullptr);
  EXPECT_EQ(parsed.scheme_for("model.vision_tower.layers.0.q_proj"), nullptr);
  // Anchored at the start, as Python's re.match.
  const QuantizationConfig anchored = parse_quantization_config(
      config(R"("num_bits":4,"group_size":32)", R"("quant_method":"compressed-tensors","format":"pack-quantized")",
             R"("targets":["re:layers"])"));
  EXPECT_EQ(anchored.scheme_for("model.layers.0.x"), nullptr);
  EXPECT_NE(anchored.scheme_for("layers.0.x"), nullptr);
}

TEST(QuantizationConfig, Presets) {
  const QuantizationConfig parsed = parse_quantization_config(
      R"({"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"W4A16_ASYM":["Linear"]}}})");
  EXPECT_EQ(*parsed.scheme_for("x"), (QuantizationScheme{4, false, 128}));
}

TEST(QuantizationConfig, RefusalsNameTheField) {
  expect_words(refused("{"), {"dir/config.json", "JSON"});
  EXPECT_THAT(refused(config("\"num_bits\":3,\"group_size\":32")), HasSubstr("num_bits is 3"));
  EXPECT_THAT(refused(config("\"num_bits\":4,\"type\":\"float\",\"group_size\":16")), HasSubstr("\"float\""));
  EXPECT_THAT(refused(config("\"num_bits\":4,\"strategy\":\"tensor\"")), HasSubstr("'tensor'"));
  EXPECT_THAT(refused(config("\"num_bits\":4,\"strategy\":\"group\"")), HasSubstr("group_size"));
  EXPECT_THAT(refused(config("\"num_bits\":4,\"group_size\":0")), HasSubstr("group_size is 0"));
  EXPECT_THAT(refused(config("\"num_bits\":4,\"group_size\":32,\"actorder\":\"group\"")), HasSubstr("actorder"));
  EXPECT_THAT(refused(config("\"num_bits\":4,\"group_size\":32,\"dynamic\":true")), HasSubstr("dynamic"));
  EXPECT_THAT(refused(config("\"num_bits\":4,\"group_size\":32,\"pack_order\":\"awq\"")), HasSubstr("pack_order"));
  const std::string weights = "\"num_bits\":4,\"group_size\":32";
  EXPECT_THAT(refused(config(weights, R"("quant_method":"hqq","format":"pack-quantized")")), HasSubstr("'hqq'"));
  EXPECT_THAT(refused(config(weights, R"("quant_method":"compressed-tensors","format":"nvfp4-pack-quantized")")),
              HasSubstr("nvfp4"));
  EXPECT_THAT(
      refused(config(weights, R"("quant_method":"compressed-tensors","format":"pack-quantized","packing":"awq")")),
      HasSubstr("packing is \"awq\""));
  EXPECT_THAT(
      refused(config(weights, R"("quant_method":"compressed-tensors","format":"pack-quantized","ignore":["re:("])")),
      HasSubstr("re:("));
  EXPECT_THAT(refused(config(weights, R"("quant_method":"compressed-tensors","format":"pack-quantized")",
                             R"("targets":["Linear"],"input_activations":{"num_bits":8})")),
              HasSubstr("input_activations"));
  // All problems at once.
  expect_words(refused(config("\"num_bits\":5,\"strategy\":\"block\"", R"("quant_method":"awq","format":"gemm")")),
               {"num_bits", "'block'", "'awq'", "'gemm'"});
}

std::string with_target(const std::string& pattern) {
  return config(R"("num_bits":4,"group_size":32)", R"("quant_method":"compressed-tensors","format":"pack-quantized")",
                R"("targets":["re:)" + pattern + R"("])");
}

// std::regex would try every way to match; none of these may be run at all.
TEST(QuantizationConfig, WrongTypesAndRepeatedKeysAreNotAbsent) {
  const std::string weights = R"("num_bits":4,"group_size":128)";
  const std::string method = R"("quant_method":"compressed-tensors")";
  expect_words(refused(config(weights + R"(,"strategy":-1)")), {"weights.strategy must be text, found -1"});
  expect_words(refused(config(weights, method + R"(,"format":7)")), {"format must be text, found 7"});
  // Also where the group names a format of its own.
  const std::string own = R"("targets":["Linear"],"format":"pack-quantized")";
  expect_words(refused(config(weights, method + R"(,"format":"x")", own)), {"format is 'x'", "mixed-precision"});
  expect_words(refused(config(weights, method, R"("targets":["Linear"],"format":[])")),
               {"config_groups.group_0.format must be text, found []"});
  expect_words(refused(config(weights + R"(,"num_bits":8)")), {"dir/config.json: 'num_bits' occurs twice"});
}

TEST(QuantizationConfig, PatternsThatCouldHangAreRefused) {
  for (const char* pattern : {"(.*)*", "(a+)+$", "(?:a+)+b", "((a+)b)*", "(a*){20}", "(a?){30}", "(a|aa)+",
                              "(x(a|b+))*c", "([)]a+)+", ".*.*.*.*.*.*.*x", "a*a*a*a*a*a*a*b"}) {
    expect_words(refused(with_target(pattern)), {"config_groups.group_0.targets", pattern, "too long to match"});
  }
  expect_words(refused(with_target(std::string(513, 'a'))), {"513 characters", "512"});
}

TEST(QuantizationConfig, OrdinaryPatternsStillWork) {
  const auto matches = [](const std::string& pattern, const std::string& module) {
    return parse_quantization_config(with_target(pattern)).scheme_for(module) != nullptr;
  };
  EXPECT_TRUE(matches(".*lm_head", "model.lm_head"));
  EXPECT_TRUE(matches(R"(model\\.layers\\.\\d+\\..*)", "model.layers.17.mlp.up_proj"));
  EXPECT_TRUE(matches(".*(self_attn|mlp).*_proj", "model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(matches("(model[.])?layers[.]([0-9]+)[.].*", "layers.3.x"));
  EXPECT_TRUE(matches(R"(a\\(b+\\)+)", "a(b)"));
  EXPECT_TRUE(matches("a[(*+]+b", "a(*b"));
  EXPECT_TRUE(matches(std::string(512, 'a'), std::string(512, 'a')));
}

}  // namespace
}  // namespace facet::test
