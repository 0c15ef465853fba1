// The whole path: dense checkpoint -> quantizer -> compressed-tensors files -> reader.
#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "facet/checkpoint/float_bits.h"
#include "facet/checkpoint/linear_weight.h"
#include "facet/checkpoint/quantized_writer.h"
#include "facet/quantizer/rtn.h"
#include "file_builder.h"

namespace facet::test {
namespace {

using testing::HasSubstr;

quantizer::RtnOptions options_of(const QuantizationScheme& scheme) {
  return {scheme.bits, scheme.symmetric, scheme.group_size};
}

QuantizedMatrix rtn(const DenseMatrix& matrix, const QuantizationScheme& scheme) {
  const auto type = matrix.type == TensorType::bf16 ? quantizer::Matrix::Type::bf16 : quantizer::Matrix::Type::f32;
  quantizer::Quantized result = quantizer::quantize_rtn(
      {matrix.name, type, matrix.values, matrix.out_features, matrix.in_features}, options_of(scheme));
  return {std::move(result.words), std::move(result.scales), std::move(result.zeros)};
}

std::vector<std::uint16_t> random_bf16(std::int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, 0.05f);
  std::vector<std::uint16_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(float_to_bf16(normal(random)));
  return values;
}

constexpr std::int64_t kOut = 13, kIn = 120;

class QuantizeCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(in_);
    std::mt19937 random(kSeed);
    FileBuilder builder;
    builder.add("model.embed_tokens.weight", "BF16", {20, 64}, random_bf16(20 * 64, random))
        .add("model.layers.0.mlp.up_proj.weight", "BF16", {kOut, kIn}, random_bf16(kOut * kIn, random))
        .add("model.layers.0.mlp.down_proj.weight", "BF16", {kIn, kOut}, random_bf16(kOut * kIn, random))
        .add("model.layers.0.input_layernorm.weight", "BF16", {64}, random_bf16(64, random))
        .add("model.norm.weight", "BF16", {64}, random_bf16(64, random));
    write_file(in_ / "model.safetensors", builder.build());
    write_file(in_ / "config.json", "{\"model_type\":\"gemma4_text\",\"zeta\":1,\"alpha\":2}");
    write_file(in_ / "tokenizer.json", "{\"t\":1}");
    write_file(in_ / "generation_config.json", "{\"g\":1}");
    job_.in = in_;
    job_.out = folder_ / "out";
    job_.linear = {4, true, 32};
    job_.quantize = rtn;
  }

  // Every value of the written module equals what the quantizer said, bit for bit.
  void expect_module(const std::string& module, const QuantizationScheme& scheme, std::int64_t out, std::int64_t in) {
    SCOPED_TRACE(testing::Message() << module << " " << to_string(scheme) << " seed " << kSeed);
    const Checkpoint source = Checkpoint::open(job_.in);
    const Checkpoint written = Checkpoint::open(job_.out);
    const Tensor& dense = source.require(module + ".weight", {out, in}, {TensorType::bf16});
    std::vector<std::uint16_t> values(static_cast<std::size_t>(out * in));
    std::memcpy(values.data(), dense.data, dense.bytes);
    const quantizer::Quantized expected =
        quantizer::quantize_rtn({module, quantizer::Matrix::Type::bf16, values.data(), out, in}, options_of(scheme));
    const QuantizationConfig config = parse_quantization_config(written.config_json());
    ASSERT_NE(config.scheme_for(module), nullptr);
    EXPECT_EQ(*config.scheme_for(module), scheme);
    const LinearWeight weight = load_linear(written, config, module, out, in);
    for (std::int64_t row = 0; row < out; ++row) {
      std::vector<float> decoded(static_cast<std::size_t>(in), std::nanf(""));
      dequantize_row(weight.view(), row, decoded.data());
      for (std::int64_t i = 0; i < in; ++i) {
        ASSERT_EQ(decoded[static_cast<std::size_t>(i)],
                  quantizer::dequantize(expected, options_of(scheme), in, row, i));
      }
    }
  }

  static constexpr unsigned kSeed = 404;
  TempFolder folder_;
  std::filesystem::path in_ = folder_ / "in";
  QuantizeJob job_;
};

TEST_F(QuantizeCheckpoint, RoundTripOfEveryScheme) {
  for (const int bits : {4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const std::int64_t group : {32, 64, 128, -1}) {
        job_.linear = {bits, symmetric, group};
        std::filesystem::remove_all(job_.out);
        const QuantizeReport report = quantize_checkpoint(job_);
        EXPECT_EQ(report.quantized.size(), 2u);
        EXPECT_EQ(report.copied, 3);
        EXPECT_EQ(report.bytes_out, std::filesystem::file_size(job_.out / "model.safetensors"));
        expect_module("model.layers.0.mlp.up_proj", job_.linear, kOut, kIn);
        expect_module("model.layers.0.mlp.down_proj", job_.linear, kIn, kOut);
      }
    }
  }
}

TEST_F(QuantizeCheckpoint, RestIsCopiedAndConfigKept) {
  job_.metadata["method"] = "rtn";
  std::vector<std::string> seen;
  quantize_checkpoint(
      job_, [&](const QuantizeProgress& p) { seen.push_back(fmt::format("{} {}/{}", p.module, p.done, p.total)); });
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen.back(), " 2/2");
  const Checkpoint source = Checkpoint::open(in_), written = Checkpoint::open(job_.out);
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight"}) {
    ASSERT_NE(written.find(name), nullptr) << name;
    EXPECT_TRUE(same_contents(*source.find(name), *written.find(name))) << name;
  }
  EXPECT_EQ(written.find("model.layers.0.mlp.up_proj.weight"), nullptr);
  EXPECT_EQ(written.files()[0].layout().metadata.at("method"), "rtn");
  EXPECT_EQ(read_file(job_.out / "tokenizer.json"), "{\"t\":1}");
  EXPECT_EQ(read_file(job_.out / "generation_config.json"), "{\"g\":1}");
  const std::string& config = written.config_json();
  EXPECT_LT(config.find("zeta"), config.find("alpha"));
  EXPECT_THAT(config, HasSubstr("\"lm_head\""));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out.partial"));
}

TEST_F(QuantizeCheckpoint, HeadAndExclusions) {
  job_.head = QuantizationScheme{8, true, -1};
  job_.exclude = {"*.down_proj"};
  quantize_checkpoint(job_);
  expect_module("model.embed_tokens", *job_.head, 20, 64);
  expect_module("model.layers.0.mlp.up_proj", job_.linear, kOut, kIn);
  const Checkpoint written = Checkpoint::open(job_.out);
  const QuantizationConfig config = parse_quantization_config(written.config_json());
  EXPECT_EQ(config.scheme_for("model.layers.0.mlp.down_proj"), nullptr);
  EXPECT_EQ(load_linear(written, config, "model.layers.0.mlp.down_proj", kIn, kOut).view().format,
            abi::WeightFormat::bf16);
}

// The table stays for looking up; the head of its own has its values, and readers are told to look for it.
TEST_F(QuantizeCheckpoint, AHeadOfItsOwn) {
  write_file(in_ / "config.json", R"({"model_type":"gemma4","text_config":{"tie_word_embeddings":true}})");
  job_.head = QuantizationScheme{4, true, 32};
  job_.own_head = true;
  const std::map<std::string, QuantizationScheme> planned = modules_to_quantize(job_, Checkpoint::open(in_));
  EXPECT_EQ(planned.at("lm_head"), *job_.head);
  EXPECT_EQ(planned.count("model.embed_tokens"), 0u);
  const QuantizeReport report = quantize_checkpoint(job_);
  EXPECT_THAT(report.quantized, testing::Contains("lm_head"));
  const Checkpoint source = Checkpoint::open(in_), written = Checkpoint::open(job_.out);
  EXPECT_TRUE(same_contents(*source.find("model.embed_tokens.weight"), *written.find("model.embed_tokens.weight")));
  EXPECT_EQ(written.config_json().find("\"tie_word_embeddings\": true"), std::string::npos);
  const QuantizationConfig config = parse_quantization_config(written.config_json());
  ASSERT_NE(config.scheme_for("lm_head"), nullptr);
  EXPECT_EQ(*config.scheme_for("lm_head"), *job_.head);
  EXPECT_EQ(config.scheme_for("model.embed_tokens"), nullptr);
  const LinearWeight head = load_linear(written, config, "lm_head", 20, 64);
  std::vector<std::uint16_t> table(20 * 64);
  std::memcpy(table.data(), source.find("model.embed_tokens.weight")->data, table.size() * 2);
  const quantizer::Quantized expected =
      quantizer::quantize_rtn({"table", quantizer::Matrix::Type::bf16, table.data(), 20, 64}, options_of(*job_.head));
  for (std::int64_t row = 0; row < 20; ++row) {
    std::vector<float> decoded(64, std::nanf(""));
    dequantize_row(head.view(), row, decoded.data());
    for (std::int64_t i = 0; i < 64; ++i) {
      ASSERT_EQ(decoded[static_cast<std::size_t>(i)],
                quantizer::dequantize(expected, options_of(*job_.head), 64, row, i));
    }
  }
}

// A source that is untied has its head quantized, however the head was asked for; an excluded head stays tied.
TEST_F(QuantizeCheckpoint, AnUntiedSourceAndAnExcludedHead) {
  job_.head = QuantizationScheme{8, true, -1};
  job_.own_head = true;
  job_.exclude = {"lm_head"};
  quantize_checkpoint(job_);
  const Checkpoint written = Checkpoint::open(job_.out);
  EXPECT_EQ(written.find("lm_head.weight_packed"), nullptr);
  EXPECT_EQ(written.config_json().find("tie_word_embeddings"), std::string::npos);
  EXPECT_EQ(parse_quantization_config(written.config_json()).scheme_for("lm_head"), nullptr);
  std::mt19937 random(kSeed);
  FileBuilder builder;
  builder.add("model.embed_tokens.weight", "BF16", {20, 64}, random_bf16(20 * 64, random))
      .add("lm_head.weight", "BF16", {20, 64}, random_bf16(20 * 64, random))
      .add("model.norm.weight", "BF16", {64}, random_bf16(64, random));
  write_file(in_ / "model.safetensors", builder.build());
  job_.exclude.clear();
  job_.own_head = false;
  job_.out = folder_ / "untied";
  quantize_checkpoint(job_);
  expect_module("lm_head", *job_.head, 20, 64);
  EXPECT_NE(Checkpoint::open(job_.out).find("model.embed_tokens.weight"), nullptr);
}

TEST_F(QuantizeCheckpoint, FailuresLeaveNothing) {
  job_.exclude = {"*.q_proj"};
  EXPECT_THAT(error_of([&] { quantize_checkpoint(job_); }), HasSubstr("*.q_proj"));
  job_.exclude.clear();
  job_.quantize = [](const DenseMatrix&, const QuantizationScheme&) { return QuantizedMatrix{}; };
  expect_words(error_of([&] { quantize_checkpoint(job_); }, ErrorKind::run), {"_proj", "0 words"});
  job_.quantize = [](const DenseMatrix& matrix, const QuantizationScheme& scheme) {
    QuantizedMatrix result = rtn(matrix, scheme);
    result.scales[0] = 0.1f;
    return result;
  };
  expect_words(error_of([&] { quantize_checkpoint(job_); }, ErrorKind::run), {"0.1", "bf16"});
  EXPECT_FALSE(std::filesystem::exists(job_.out));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out.partial"));

  job_.quantize = rtn;
  std::filesystem::create_directory(folder_ / "out.partial");
  expect_words(error_of([&] { quantize_checkpoint(job_); }, ErrorKind::run), {"out.partial", "interrupted"});
  std::filesystem::remove(folder_ / "out.partial");
  quantize_checkpoint(job_);
  expect_words(error_of([&] { quantize_checkpoint(job_); }, ErrorKind::run), {"exists already"});
  job_.in = job_.out;
  job_.out = folder_ / "again";
  EXPECT_THAT(error_of([&] { quantize_checkpoint(job_); }), HasSubstr("quantized already"));
}

TEST_F(QuantizeCheckpoint, ATrailingSlashNamesTheSameFolder) {
  job_.out = (folder_ / "out").string() + "/./";
  quantize_checkpoint(job_);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out" / "config.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out" / ".partial"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out.partial"));
}

TEST_F(QuantizeCheckpoint, AnUnusableNameIsRefusedBeforeAnyWork) {
  job_.quantize = [](const DenseMatrix&, const QuantizationScheme&) -> QuantizedMatrix {
    ADD_FAILURE() << "work was done";
    return {};
  };
  job_.out = "";
  expect_words(error_of([&] { quantize_checkpoint(job_); }, ErrorKind::usage), {"empty"});
  job_.out = folder_ / "link";
  std::filesystem::create_symlink(folder_ / "nowhere", job_.out);
  expect_words(error_of([&] { quantize_checkpoint(job_); }, ErrorKind::run), {"link", "leads nowhere"});
  EXPECT_TRUE(std::filesystem::is_symlink(job_.out));
  // Before the source is opened, too.
  job_.in = folder_ / "absent";
  expect_words(error_of([&] { quantize_checkpoint(job_); }, ErrorKind::run), {"leads nowhere"});
  for (const char* name : {"/", ".", ".."}) {
    job_.out = name;
    expect_words(error_of([&] { quantize_checkpoint(job_); }, ErrorKind::run), {"exists already"});
  }
}

}  // namespace
}  // namespace facet::test
