// GPTQ checkpoints of the embedded model, run: the same codes in compressed-tensors layout are the same model.
#include <gmock/gmock.h>

#include <fstream>

#include "eval_against_fixture.h"
#include "facet/checkpoint/gptq_writer.h"
#include "facet/checkpoint/linear_weight.h"
#include "gemma4/pipeline.h"
#include "quantize_weight.h"

namespace facet::cli_test {
namespace {

using testing::HasSubstr;

constexpr const char* kW4a16 = "[linear]\nplugin = \"w4a16\"\nfallback = [\"dense\"]";
constexpr const char* kReference = "[linear]\nplugin = \"reference\"";

// What a test does to the tensors of a GPTQ checkpoint on their way into another folder.
struct Change {
  std::function<std::string(const std::string& name)> rename = [](const std::string& name) { return name; };
  std::function<bool(const std::string& name)> keep = [](const std::string&) { return true; };
  std::function<void(Json& config)> config = [](Json&) {};
  // Tensors beside the others.
  std::function<void(SafetensorsWriter& writer)> add = [](SafetensorsWriter&) {};
};

void rewrite(const fs::path& from, const fs::path& to, const Change& change) {
  const Checkpoint source = Checkpoint::open(from);
  fs::create_directories(to);
  SafetensorsWriter writer(to / "model.safetensors");
  for (const std::string& name : source.names()) {
    const Tensor& tensor = *source.find(name);
    if (change.keep(name)) writer.add(change.rename(name), tensor.type, tensor.shape, tensor.data);
  }
  change.add(writer);
  writer.write();
  Json config = Json::parse(source.config_json());
  change.config(config);
  write_text_atomically(to / "config.json", config.dump());
}

class EvalGptqTest : public EvalAgainstTest {
 protected:
  void SetUp() override {
    EvalAgainstTest::SetUp();
    for (const char* format : {"compressed-tensors", "gptq"}) {
      const ProgramResult run =
          run_facet({"quantize", "--in", embedded_checkpoint().string(), "--out", (folder_ / format).string(),
                     "--group", "64", "--format", format, "--exclude", "*.layers.1.mlp.up_proj"});
      ASSERT_EQ(run.exit_code, 0) << run.text();
    }
  }
  std::string config_of(const std::string& name, const fs::path& model, const char* linear) const {
    ConfigText text;
    text.model = model.string();
    text.linear = linear;
    return config(name, text, "checkpoint");
  }
  void expect_same_model(const fs::path& gptq, const char* linear) const {
    const Json result = eval(config_of("gptq", gptq, linear), config_of("ct", folder_ / "compressed-tensors", linear));
    EXPECT_EQ(result["against"]["mean_kl"], 0.0);
    EXPECT_EQ(result["against"]["max_logit_difference"], 0.0);
    EXPECT_EQ(result["against"]["top1_agreement"], 1.0);
  }
  std::string refused(const fs::path& model, const char* linear) const {
    const ProgramResult run = run_facet({"eval", config_of("refused", model, linear), "--tokens", tokens_});
    EXPECT_EQ(run.exit_code, 3) << run.text();
    EXPECT_EQ(run.out, "");
    return run.err;
  }
};

TEST_F(EvalGptqTest, IsTheSameModelInBothFormats) {
  EXPECT_TRUE(Checkpoint::open(folder_ / "gptq").find("model.layers.1.mlp.up_proj.weight") != nullptr);
  expect_same_model(folder_ / "gptq", kW4a16);
  const Json lossy = eval(config_of("gptq", folder_ / "gptq", kW4a16), plain_);
  EXPECT_GT(lossy["against"]["mean_kl"].get<double>(), 0.0);
  EXPECT_LT(lossy["against"]["mean_kl"].get<double>(), 1.0);
}

TEST_F(EvalGptqTest, NestedCheckpointsSkipTheirOtherParts) {
  Change nest;
  nest.rename = [](const std::string& name) { return "model.language_model." + name.substr(6); };
  nest.add = [](SafetensorsWriter& writer) {
    static const std::vector<std::uint16_t> junk(64, 0x7fc0);  // NaN
    for (const char* name : {"model.vision_tower.layers.0.q_proj.qweight", "model.audio_tower.layers.0.weight"})
      writer.add(name, TensorType::bf16, {8, 8}, junk.data());
  };
  nest.config = [](Json& config) {
    Json quantization = config["quantization_config"];
    config.erase("quantization_config");
    config = {{"model_type", "gemma4_unified"}, {"text_config", config}, {"quantization_config", quantization}};
  };
  rewrite(folder_ / "gptq", folder_ / "nested", nest);
  expect_same_model(folder_ / "nested", kW4a16);
}

// Every group of 64 becomes four of 16 with equal scales, their inputs interleaved: other files, the same weights.
TEST_F(EvalGptqTest, ActivationOrderRunsExactlyOnThePluginThatTakesIt) {
  const Checkpoint source = Checkpoint::open(folder_ / "gptq");
  std::vector<std::vector<std::byte>> owned;
  Change scatter;
  scatter.keep = [](const std::string& name) {
    return !name.ends_with(".scales") && !name.ends_with(".qzeros") && !name.ends_with(".g_idx");
  };
  scatter.config = [](Json& config) {
    config["quantization_config"]["group_size"] = 16;
    config["quantization_config"]["desc_act"] = true;
  };
  scatter.add = [&](SafetensorsWriter& writer) {
    for (const std::string& name : source.names()) {
      if (scatter.keep(name)) continue;
      const Tensor& tensor = *source.find(name);
      owned.emplace_back();
      if (name.ends_with(".g_idx")) {
        for (std::int64_t i = 0; i < tensor.shape[0]; ++i) {
          const auto group = static_cast<std::int32_t>(i / 64 * 4 + i % 4);
          const auto* bytes = reinterpret_cast<const std::byte*>(&group);
          owned.back().insert(owned.back().end(), bytes, bytes + 4);
        }
        writer.add(name, tensor.type, tensor.shape, owned.back().data());
        continue;
      }
      const std::uint64_t row = tensor.bytes / static_cast<std::uint64_t>(tensor.shape[0]);
      for (std::int64_t group = 0; group < 4 * tensor.shape[0]; ++group) {
        const std::byte* begin = tensor.data + static_cast<std::uint64_t>(group / 4) * row;
        owned.back().insert(owned.back().end(), begin, begin + row);
      }
      writer.add(name, tensor.type, {4 * tensor.shape[0], tensor.shape[1]}, owned.back().data());
    }
  };
  rewrite(folder_ / "gptq", folder_ / "scattered", scatter);
  expect_same_model(folder_ / "scattered", kReference);
  const std::string message = refused(folder_ / "scattered", kW4a16);
  for (const char* word : {"layers.0.self_attn.q_proj", "g1 symmetric", "group_size 1", "scattered", "static groups"})
    EXPECT_THAT(message, HasSubstr(word));
}

TEST_F(EvalGptqTest, MissingProjectionsAndDamagedFilesNameTheLayer) {
  Change without;
  without.keep = [](const std::string& name) { return name.find("layers.0.self_attn.v_proj.") == std::string::npos; };
  rewrite(folder_ / "gptq", folder_ / "no_v", without);
  for (const char* word : {"layer 0 (sliding attention)", "layers.0.self_attn.v_proj", "missing"})
    EXPECT_THAT(refused(folder_ / "no_v", kW4a16), HasSubstr(word));
  without.keep = [](const std::string& name) { return !name.ends_with("layers.2.mlp.down_proj.qzeros"); };
  rewrite(folder_ / "gptq", folder_ / "no_zeros", without);
  for (const char* word : {"layers.2.mlp.down_proj.qzeros", "missing", "int4 symmetric g64"})
    EXPECT_THAT(refused(folder_ / "no_zeros", kW4a16), HasSubstr(word));
  const fs::path cut = folder_ / "gptq" / "model.safetensors";
  fs::resize_file(cut, fs::file_size(cut) - 1);
  EXPECT_THAT(refused(folder_ / "gptq", kW4a16), HasSubstr("model.safetensors"));
}

// A quantized output head of its own beside a bf16 embedding, as GPTQ writers untie it.
TEST_F(EvalGptqTest, AHeadOfItsOwn) {
  const Checkpoint dense = Checkpoint::open(embedded_checkpoint());
  const Tensor& table = *dense.find("model.embed_tokens.weight");
  const std::int64_t out = table.shape[0], in = table.shape[1];
  Change untie;
  untie.config = [](Json& config) {
    config["tie_word_embeddings"] = false;
    config["quantization_config"]["lm_head"] = true;
  };
  untie.add = [&](SafetensorsWriter& writer) {
    add_gptq_module(writer, "lm_head", {4, true, 64}, GptqZeros::minus_one, out, in, [&] {
      const QuantizationConfig none;
      const LinearWeight weight = cli::quantize_weight(load_linear(dense, none, "model.embed_tokens", out, in),
                                                       {abi::WeightFormat::int4, 64, true});
      const auto* words = static_cast<const std::uint32_t*>(weight.view().values);
      return QuantizedMatrix{
          {words, words + out * in / 8}, {weight.view().scales, weight.view().scales + out * in / 64}, {}};
    });
  };
  rewrite(folder_ / "gptq", folder_ / "head", untie);
  const Json result = eval(config_of("head", folder_ / "head", kW4a16), config_of("tied", folder_ / "gptq", kW4a16));
  EXPECT_GT(result["against"]["mean_kl"].get<double>(), 0.0);
  EXPECT_LT(result["against"]["mean_kl"].get<double>(), 0.2);
}

TEST_F(EvalGptqTest, CopiedCodesAreInTheMemoryPlan) {
  gemma4::PipelineOptions options;
  options.plugin_dirs = {fs::path(FACET_BINARY_DIR) / "lib/facet/plugins"};
  for (const char* linear : {kReference, kW4a16}) {
    gemma4::Pipeline pipeline(load_config(config_of("plan", folder_ / "gptq", linear)), options);
    pipeline.load();
    const std::uint64_t unpacked = dynamic_cast<gemma4::Gemma4Model&>(pipeline.model()).unpacked_weight_bytes();
    EXPECT_EQ(unpacked, pipeline.memory().weights_unpacked);
  }
}

TEST_F(EvalGptqTest, QuantizeRefusesWhatTheFormatCannotHold) {
  const ProgramResult run = run_facet({"quantize", "--in", embedded_checkpoint().string(), "--out",
                                       (folder_ / "never").string(), "--format", "gptq", "--head", "int8"});
  EXPECT_EQ(run.exit_code, 2) << run.text();
  for (const char* word : {"--format gptq", "--head is int8", "bf16"}) EXPECT_THAT(run.err, HasSubstr(word));
  EXPECT_FALSE(fs::exists(folder_ / "never"));
  const ProgramResult again =
      run_facet({"quantize", "--in", (folder_ / "gptq").string(), "--out", (folder_ / "never").string()});
  EXPECT_EQ(again.exit_code, 3) << again.text();
  EXPECT_THAT(again.err, HasSubstr("is quantized already"));
}

}  // namespace
}  // namespace facet::cli_test
