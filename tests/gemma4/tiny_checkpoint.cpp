#include "tiny_checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "facet/checkpoint/float_bits.h"
#include "facet/checkpoint/writer.h"

namespace facet::test {

TestFolder::TestFolder() {
  std::string pattern = testing::TempDir() + "facet-tiny-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot create " + pattern);
  path_ = pattern;
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

TinyCheckpoint::TinyCheckpoint(std::uint64_t seed) : state_(seed) {
  config = {
      {"model_type", "gemma4_text"},
      {"vocab_size", kVocabulary},
      {"hidden_size", kHidden},
      {"intermediate_size", kFeedForward},
      {"num_attention_heads", 2},
      {"num_key_value_heads", 1},
      {"head_dim", 32},
      {"global_head_dim", 64},
      {"num_global_key_value_heads", 1},
      {"num_hidden_layers", 2},
      {"layer_types", {"sliding_attention", "full_attention"}},
      {"sliding_window", kWindow},
      {"max_position_embeddings", 256},
      {"rms_norm_eps", 1e-6},
      {"final_logit_softcapping", 30.0},
      {"hidden_activation", "gelu_pytorch_tanh"},
      {"attention_k_eq_v", true},
      {"tie_word_embeddings", true},
      {"rope_parameters",
       {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000.0}}},
        {"full_attention", {{"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}}}}};
  tensors["model.embed_tokens.weight"] = random({kVocabulary, kHidden}, 0, 0.2);
  tensors["model.norm.weight"] = random({kHidden}, 1, 0.1);
  add_layer(0, true);
  add_layer(1, false);
}

void TinyCheckpoint::add_layer(int index, bool sliding) {
  const std::int64_t head = sliding ? 32 : 64;
  const std::string base = fmt::format("model.layers.{}.", index);
  for (const char* name :
       {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"})
    tensors[base + name + ".weight"] = random({kHidden}, 1, 0.1);
  tensors[base + "layer_scalar"] = random({1}, 0.8, 0.05);
  tensors[base + "self_attn.q_norm.weight"] = random({head}, 1, 0.1);
  tensors[base + "self_attn.k_norm.weight"] = random({head}, 0.3, 0.05);
  tensors[base + "self_attn.q_proj.weight"] = random({2 * head, kHidden}, 0, 0.1);
  tensors[base + "self_attn.k_proj.weight"] = random({head, kHidden}, 0, 0.1);
  if (sliding) tensors[base + "self_attn.v_proj.weight"] = random({head, kHidden}, 0, 0.1);
  tensors[base + "self_attn.o_proj.weight"] = random({kHidden, 2 * head}, 0, 0.1);
  tensors[base + "mlp.gate_proj.weight"] = random({kFeedForward, kHidden}, 0, 0.1);
  tensors[base + "mlp.up_proj.weight"] = random({kFeedForward, kHidden}, 0, 0.1);
  tensors[base + "mlp.down_proj.weight"] = random({kHidden, kFeedForward}, 0, 0.1);
}

TinyCheckpoint::Values TinyCheckpoint::random(std::vector<std::int64_t> shape, double mean, double deviation) {
  std::mt19937_64 source(state_++);
  std::normal_distribution<double> normal(mean, deviation);
  Values values{TensorType::bf16, std::move(shape), {}};
  std::int64_t count = 1;
  for (const std::int64_t extent : values.shape) count *= extent;
  for (std::int64_t i = 0; i < count; ++i) values.bits.push_back(float_to_bf16(static_cast<float>(normal(source))));
  return values;
}

void TinyCheckpoint::nest() {
  config = {{"model_type", "gemma4_unified"}, {"text_config", config}, {"vision_config", {{"hidden_size", 16}}}};
  config["text_config"]["model_type"] = "gemma4_unified_text";
  std::map<std::string, Values> renamed;
  for (auto& [name, values] : tensors) {
    const bool text = name.starts_with("model.");
    renamed[text ? "model.language_model." + name.substr(6) : name] = std::move(values);
  }
  tensors = std::move(renamed);
  tensors["model.vision_tower.encoder.layers.0.q_proj.weight"] = random({16, 16}, 0, 1);
  tensors["model.embed_vision.embedding_projection.weight"] = random({kHidden, 16}, 0, 1);
  tensors["model.audio_tower.conv.weight"] = random({4, 4}, 0, 1);
}

void TinyCheckpoint::write(const std::filesystem::path& folder) const {
  std::filesystem::create_directories(folder);
  SafetensorsWriter writer(folder / "model.safetensors");
  for (const auto& [name, values] : tensors) writer.add(name, values.type, values.shape, values.bits.data());
  writer.write();
  write_text_atomically(folder / "config.json", config.dump(1));
}

}  // namespace facet::test
