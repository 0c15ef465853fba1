#include "gemma4/gemma4_config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "facet/base/error.h"
#include "facet/base/json_keys.h"
#include "facet/sdk/numeric.h"

namespace facet::gemma4 {
namespace {

using Json = nlohmann::json;

std::string shown(const Json& value) {
  constexpr std::size_t kLongest = 100;
  const std::string text = value.dump();
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

// Reads fields of one JSON object and notes what is wrong instead of stopping at the first.
class Reader {
 public:
  Reader(const Json& object, std::string path, Problems& problems)
      : object_(object), path_(std::move(path)), problems_(problems) {}

  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  std::int64_t positive(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return missing(key), 1;
    if (!value->is_number_integer() || value->get<std::int64_t>() <= 0 || value->get<std::int64_t>() > (1ll << 31)) {
      problems_.add("{}{}: {} is no positive whole number below 2^31", path_, key, value->dump());
      return 1;
    }
    return value->get<std::int64_t>();
  }
  double real(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return missing(key), 1.0;
    // It is used as a float.
    const float number = value->is_number() ? static_cast<float>(value->get<double>()) : 0.0f;
    if (!std::isfinite(number) || number <= 0) {
      problems_.add("{}{}: {} is no positive number that a float holds", path_, key, shown(*value));
      return 1.0;
    }
    return value->get<double>();
  }
  // A share or a small term: no more than 1.
  double real_to_one(const char* key) const {
    const double value = real(key);
    if (value > 1) problems_.add("{}{}: {} is above 1", path_, key, value);
    return value;
  }
  bool boolean(const char* key, bool standard) const {
    const Json* value = find(key);
    if (value == nullptr) return standard;
    if (!value->is_boolean()) {
      problems_.add("{}{}: {} is neither true nor false", path_, key, shown(*value));
      return standard;
    }
    return value->get<bool>();
  }
  std::string text(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return missing(key), std::string();
    if (value->is_string()) return value->get<std::string>();
    problems_.add("{}{}: {} is no text", path_, key, shown(*value));
    return std::string();
  }
  // A setting this code does not compute must be absent, null, false or 0.
  void refuse(const char* key, const char* what) const {
    const Json* value = find(key);
    if (value == nullptr || (value->is_boolean() && !value->get<bool>()) ||
        (value->is_number() && value->get<double>() == 0))
      return;
    problems_.add("{}{}: {} is set, and {} is not supported", path_, key, value->dump(), what);
  }
  void missing(const char* key) const { problems_.add("{}{}: is missing", path_, key); }
  const std::string& path() const { return path_; }

 private:
  const Json& object_;
  std::string path_;
  Problems& problems_;
};

struct Rotary {
  double base = 0;
  double factor = 1;
};

Rotary read_rotary(const Reader& text, const char* kind, Problems& problems) {
  const Json* all = text.find("rope_parameters");
  if (all == nullptr || !all->is_object() || !all->contains(kind) || !(*all)[kind].is_object()) {
    problems.add("{}rope_parameters.{}: is missing", text.path(), kind);
    return {1, 1};
  }
  const Reader reader((*all)[kind], fmt::format("{}rope_parameters.{}.", text.path(), kind), problems);
  Rotary rotary{reader.real("rope_theta"), 1.0};
  const std::string type = reader.text("rope_type");
  if (type == "proportional") {
    rotary.factor = reader.real_to_one("partial_rotary_factor");
  } else if (type != "default") {
    problems.add("{}rope_type: '{}' is unknown; supported are default and proportional", reader.path(), type);
  }
  return rotary;
}

// head_dim and kv_heads of a layer: the plain fields, the global_* ones on full-attention layers, then
// per_layer_config.
void apply_layer_shape(const Reader& text, std::size_t index, LayerConfig& layer, Problems& problems) {
  layer.head_dim = text.positive("head_dim");
  layer.kv_heads = text.positive("num_key_value_heads");
  if (!layer.sliding) {
    if (text.find("global_head_dim") != nullptr) layer.head_dim = text.positive("global_head_dim");
    if (text.find("num_global_key_value_heads") != nullptr)
      layer.kv_heads = text.positive("num_global_key_value_heads");
  }
  const Json* overrides = text.find("per_layer_config");
  const std::string key = std::to_string(index);
  if (overrides == nullptr || !overrides->is_object() || !overrides->contains(key) || (*overrides)[key].is_null())
    return;
  if (!(*overrides)[key].is_object()) {
    problems.add("{}per_layer_config.{}: {} is no object", text.path(), key, shown((*overrides)[key]));
    return;
  }
  const Reader reader((*overrides)[key], fmt::format("{}per_layer_config.{}.", text.path(), key), problems);
  if (reader.find("head_dim") != nullptr) layer.head_dim = reader.positive("head_dim");
  if (reader.find("num_key_value_heads") != nullptr) layer.kv_heads = reader.positive("num_key_value_heads");
}

void read_layers(const Reader& text, ModelConfig& config, Problems& problems) {
  const std::int64_t count = text.positive("num_hidden_layers");
  const Json* types = text.find("layer_types");
  if (types == nullptr || !types->is_array() || static_cast<std::int64_t>(types->size()) != count) {
    problems.add("{}layer_types: must list one type for each of the {} layers", text.path(), count);
    return;
  }
  const Rotary sliding_rotary = read_rotary(text, "sliding_attention", problems);
  const Rotary global_rotary = read_rotary(text, "full_attention", problems);
  const bool keys_are_values = text.boolean("attention_k_eq_v", false);
  if (const Json* overrides = text.find("per_layer_config"); overrides != nullptr && !overrides->is_object())
    problems.add("{}per_layer_config: {} is no object from layer numbers to their settings", text.path(),
                 shown(*overrides));
  for (std::size_t i = 0; i < types->size(); ++i) {
    LayerConfig layer;
    const std::string type = (*types)[i].is_string() ? (*types)[i].get<std::string>() : (*types)[i].dump();
    if (type != "sliding_attention" && type != "full_attention") {
      problems.add("{}layer_types[{}]: '{}' is unknown; known are sliding_attention and full_attention", text.path(), i,
                   type);
      continue;
    }
    layer.sliding = type == "sliding_attention";
    apply_layer_shape(text, i, layer, problems);
    layer.window = layer.sliding ? text.positive("sliding_window") : 0;
    layer.values_from_keys = !layer.sliding && keys_are_values;
    const Rotary& rotary = layer.sliding ? sliding_rotary : global_rotary;
    layer.rotary_base = rotary.base;
    layer.rotary_live = static_cast<std::int64_t>(rotary.factor * static_cast<double>(layer.head_dim) / 2);
    if (layer.head_dim % 2 != 0 || layer.head_dim > 1024)
      problems.add("layer {}: head_dim {} must be even and at most 1024", i, layer.head_dim);
    if (config.query_heads % layer.kv_heads != 0) {
      problems.add("layer {}: {} query heads are no multiple of {} KV heads", i, config.query_heads, layer.kv_heads);
    }
    config.layers.push_back(layer);
  }
}

void check_unsupported(const Reader& text, Problems& problems) {
  text.refuse("attention_bias", "a bias in attention");
  text.refuse("hidden_size_per_layer_input", "an embedding for each layer");
  text.refuse("num_kv_shared_layers", "sharing KV between layers");
  text.refuse("use_double_wide_mlp", "a double-wide feed-forward");
  text.refuse("enable_moe_block", "a mixture of experts");
  // "vision" makes image tokens see each other; text stays causal.
  const Json* both_ways = text.find("use_bidirectional_attention");
  if (both_ways == nullptr || *both_ways != "vision")
    text.refuse("use_bidirectional_attention", "bidirectional attention");
  const std::string activation =
      text.find("hidden_activation") != nullptr ? text.text("hidden_activation") : "gelu_pytorch_tanh";
  if (activation != "gelu_pytorch_tanh") {
    problems.add("{}hidden_activation: '{}' is not supported; known is gelu_pytorch_tanh", text.path(), activation);
  }
}

Json parse_json(const std::string& config_json, const std::string& file) {
  refuse_repeated_keys(config_json, ErrorKind::checkpoint, file);
  try {
    Json root = Json::parse(config_json);
    if (root.is_object()) return root;
  } catch (const Json::exception& error) {
    throw_error(ErrorKind::checkpoint, "{}: {}", file, error.what());
  }
  throw_error(ErrorKind::checkpoint, "{}: is no JSON object", file);
}

}  // namespace

ModelConfig parse_config(const std::string& config_json, const std::string& file) {
  const Json root = parse_json(config_json, file);
  const bool nested = root.contains("text_config") && root["text_config"].is_object();
  Problems problems;
  const Reader text(nested ? root["text_config"] : root, nested ? "text_config." : "", problems);
  ModelConfig config;
  config.model_type = text.text("model_type");
  if (config.model_type != "gemma4_text" && config.model_type != "gemma4_unified_text") {
    problems.add("{}model_type: '{}' is not a Gemma 4 text model; known are gemma4_text and gemma4_unified_text",
                 text.path(), config.model_type);
  }
  config.vocabulary = text.positive("vocab_size");
  config.hidden = text.positive("hidden_size");
  config.feed_forward = text.positive("intermediate_size");
  config.query_heads = text.positive("num_attention_heads");
  config.max_positions = text.positive("max_position_embeddings");
  config.epsilon = static_cast<float>(text.real_to_one("rms_norm_eps"));
  config.soft_cap =
      text.find("final_logit_softcapping") != nullptr ? static_cast<float>(text.real("final_logit_softcapping")) : 0.0f;
  config.embedding_scale = sdk::bf16_to_float(sdk::float_to_bf16(std::sqrt(static_cast<float>(config.hidden))));
  // Nested files may say it inside or outside; the inner one is the text model's own.
  const Reader outside(root, "", problems);
  const Reader& tied = text.find("tie_word_embeddings") != nullptr ? text : outside;
  config.tied_head = tied.boolean("tie_word_embeddings", true);
  check_unsupported(text, problems);
  read_layers(text, config, problems);
  problems.throw_if_any(ErrorKind::checkpoint, fmt::format("{}: this model cannot be run:", file));
  return config;
}

std::vector<float> inverse_frequencies(const LayerConfig& layer) {
  std::vector<float> frequencies(static_cast<std::size_t>(layer.rotary_live));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(layer.head_dim);
    frequencies[i] = 1.0f / std::pow(static_cast<float>(layer.rotary_base), exponent);
  }
  return frequencies;
}

}  // namespace facet::gemma4
