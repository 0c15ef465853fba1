// Gemma 4's config.json as values: flat text configs and nested multimodal ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace facet::gemma4 {

struct LayerConfig {
  bool sliding = false;
  std::int64_t head_dim = 0;
  std::int64_t kv_heads = 0;
  std::int64_t window = 0;        // 0 on global layers
  bool values_from_keys = false;  // no v_proj: V is the raw K projection
  std::int64_t rotary_live = 0;   // pairs that turn; the others pass
  double rotary_base = 0;

  // Channels of a key that turn where the others follow from the value; 0 where keys are their own (KvGroupSpec).
  std::int64_t turned_channels() const {
    return values_from_keys && rotary_live > 0 && 2 * rotary_live < head_dim ? 2 * rotary_live : 0;
  }
};

struct ModelConfig {
  std::string model_type;
  std::int64_t vocabulary = 0;
  std::int64_t hidden = 0;
  std::int64_t feed_forward = 0;
  std::int64_t query_heads = 0;
  std::int64_t max_positions = 0;
  float epsilon = 0;
  float soft_cap = 0;         // 0: none
  float embedding_scale = 0;  // sqrt(hidden) rounded to bf16
  bool tied_head = true;
  std::vector<LayerConfig> layers;
};

// Throws Error(checkpoint) that starts with `file` and lists every missing field, wrong type and setting this model
// code does not compute (biases, per-layer inputs, shared KV layers, experts, other activations), each with value and
// cure.
ModelConfig parse_config(const std::string& config_json, const std::string& file = "config.json");

// base^(-2i / head_dim) for i < live, in fp32 as the reference model computes it.
std::vector<float> inverse_frequencies(const LayerConfig& layer);

}  // namespace facet::gemma4
