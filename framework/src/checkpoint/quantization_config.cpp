#include "facet/checkpoint/quantization_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "facet/base/error.h"
#include "facet/base/json_keys.h"
#include "facet/base/log.h"
#include "gptq_config.h"
#include "module_patterns.h"

namespace facet {
namespace {

// Order matters: the first rule that matches decides.
using json = nlohmann::ordered_json;

constexpr const char* kFormat = "pack-quantized";

bool absent(const json& object, const char* key) {
  return !object.contains(key) || object.at(key).is_null();
}

// Empty when it is absent. `where`: the object's place with a dot behind it, or nothing.
std::string text_of(const json& object, const char* key, const std::string& where, Problems& problems) {
  if (absent(object, key)) return {};
  if (object.at(key).is_string()) return object.at(key).get<std::string>();
  problems.add("{}{} must be text, found {}", where, key,
               object.at(key).dump(-1, ' ', true, json::error_handler_t::replace));
  return {};
}

std::vector<std::string> read_patterns(const json& value, const std::string& where, Problems& problems) {
  std::vector<std::string> patterns;
  if (!value.is_array()) {
    problems.add("{} must be a list of texts", where);
    return patterns;
  }
  for (const json& item : value) {
    if (!item.is_string()) {
      problems.add("{} must be a list of texts, found {}", where,
                   item.dump(-1, ' ', true, json::error_handler_t::replace));
      continue;
    }
    patterns.push_back(item.get<std::string>());
    if (!patterns.back().starts_with("re:")) continue;
    checkpoint_detail::check_pattern(patterns.back().substr(3), where, patterns.back(), problems);
  }
  return patterns;
}

// Fields of "weights" that do not change what is stored, and the ones read below. Anything else could (a packing order,
// say).
void check_weight_fields(const json& weights, const std::string& where, Problems& problems) {
  static const std::vector<std::string> kKnown = {
      "num_bits", "type",     "symmetric",   "group_size", "strategy", "block_structure",
      "dynamic",  "actorder", "scale_dtype", "zp_dtype",   "observer", "observer_kwargs"};
  for (const auto& [key, value] : weights.items()) {
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
      problems.add("{}.{} is unknown and could change how codes are stored; known are {}", where, key,
                   fmt::join(kKnown, ", "));
    }
  }
  if (!absent(weights, "block_structure")) problems.add("{}.block_structure: block scales are not supported", where);
  if (!absent(weights, "dynamic") && weights.at("dynamic") != false)
    problems.add("{}.dynamic must be false for weights", where);
  if (!absent(weights, "actorder")) {
    const json& order = weights.at("actorder");
    if (order != false && order != "weight" && order != "static") {
      problems.add("{}.actorder is {}: run-time group indices are not supported, only \"weight\" or \"static\"", where,
                   order.dump());
    }
  }
}

std::int64_t read_group_size(const json& weights, const std::string& where, Problems& problems) {
  std::int64_t size = 0;
  if (!absent(weights, "group_size")) {
    const json& value = weights.at("group_size");
    if (!value.is_number_integer() || (value.get<std::int64_t>() != -1 && value.get<std::int64_t>() <= 0)) {
      problems.add("{}.group_size is {}, it must be a positive whole number or -1", where, value.dump());
      return -1;
    }
    size = value.get<std::int64_t>();
  }
  std::string strategy = text_of(weights, "strategy", where + ".", problems);
  std::transform(strategy.begin(), strategy.end(), strategy.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  if (strategy.empty()) strategy = size > 0 ? "group" : size == -1 ? "channel" : "tensor";
  if (strategy == "channel") return -1;
  if (strategy != "group") {
    problems.add("{}.strategy is '{}', supported are 'group' and 'channel'", where, strategy);
  } else if (size <= 0) {
    problems.add("{}.strategy is 'group', which needs a positive group_size", where);
  }
  return size > 0 ? size : -1;
}

QuantizationScheme read_weights(const json& weights, const std::string& where, Problems& problems) {
  QuantizationScheme scheme;
  if (!weights.is_object()) {
    problems.add("{} must be an object; groups without quantized weights are not supported", where);
    return scheme;
  }
  check_weight_fields(weights, where, problems);
  // The library's own defaults stand in for absent fields: 8 bits, int, symmetric.
  const json bits = weights.value("num_bits", json(8));
  if (bits != 4 && bits != 8) {
    problems.add("{}.num_bits is {}, supported are 4 and 8", where, bits.dump());
  } else {
    scheme.bits = bits.get<int>();
  }
  const json type = weights.value("type", json("int"));
  if (type != "int") problems.add("{}.type is {}, supported is \"int\"", where, type.dump());
  const json symmetric = weights.value("symmetric", json(true));
  if (!symmetric.is_boolean()) {
    problems.add("{}.symmetric must be true or false, found {}", where, symmetric.dump());
  } else {
    scheme.symmetric = symmetric.get<bool>();
  }
  scheme.group_size = read_group_size(weights, where, problems);
  return scheme;
}

// A group may be written as {"W4A16": ["Linear"]}: the name is the scheme and the value its targets.
bool read_preset(const std::string& name, QuantizationScheme& scheme) {
  if (name == "W4A16") scheme = {4, true, 128};
  if (name == "W4A16_ASYM") scheme = {4, false, 128};
  if (name == "W8A16") scheme = {8, true, -1};
  return name == "W4A16" || name == "W4A16_ASYM" || name == "W8A16";
}

void read_group(const std::string& name, const json& value, const std::string& top_format, QuantizationConfig& config,
                Problems& problems) {
  const std::string where = fmt::format("config_groups.{}", name);
  QuantizationGroup group;
  group.name = name;
  if (value.is_array()) {
    if (!read_preset(name, group.scheme)) {
      problems.add("{}: unknown preset; known are W4A16, W4A16_ASYM, W8A16", where);
    }
    group.targets = read_patterns(value, where, problems);
    if (top_format != kFormat) problems.add("format is '{}', supported is '{}'", top_format, kFormat);
    config.groups.push_back(std::move(group));
    return;
  }
  if (!value.is_object()) {
    problems.add("{} must be an object or a list", where);
    return;
  }
  const std::string own_format = text_of(value, "format", where + ".", problems);
  const std::string format = own_format.empty() ? top_format : own_format;
  if (format != kFormat) problems.add("{}: format is '{}', supported is '{}'", where, format, kFormat);
  for (const char* key : {"input_activations", "output_activations"}) {
    if (!absent(value, key)) problems.add("{}.{}: quantized activations are not supported, only weights", where, key);
  }
  group.targets = read_patterns(value.value("targets", json()), where + ".targets", problems);
  group.scheme = read_weights(value.value("weights", json()), where + ".weights", problems);
  config.groups.push_back(std::move(group));
}

void check_top_fields(const json& quantization, const std::string& file, Problems& problems) {
  const std::string method = text_of(quantization, "quant_method", "", problems);
  if (method != "compressed-tensors") {
    problems.add("quant_method is '{}', supported are 'compressed-tensors' and 'gptq'", method);
  }
  for (const char* key : {"pack_order", "packing", "packing_order"}) {
    if (!absent(quantization, key) && quantization.at(key) != "sequential") {
      problems.add("{} is {}, supported is \"sequential\"", key, quantization.at(key).dump());
    }
  }
  if (!absent(quantization, "transform_config") && !quantization.at("transform_config").empty()) {
    problems.add("transform_config: weights stored in a rotated basis are not supported");
  }
  const json sparsity = quantization.value("sparsity_config", json::object());
  if (sparsity.is_object() && !absent(sparsity, "format") && sparsity.at("format") != "dense") {
    problems.add("sparsity_config.format is {}, supported is \"dense\"", sparsity.at("format").dump());
  }
  if (!absent(quantization, "kv_cache_scheme")) {
    log(LogLevel::warn, "{}: kv_cache_scheme is ignored: the cache's element type comes from the configuration", file);
  }
}

enum class Match { none, by_class, by_regex, by_name };

Match match(const std::vector<std::string>& names, const std::string& pattern) {
  const std::string_view module = names.front();
  if (pattern.starts_with("re:")) {
    return checkpoint_detail::matches_start(names, pattern.substr(3)) ? Match::by_regex : Match::none;
  }
  if (std::find(names.begin(), names.end(), pattern) != names.end()) return Match::by_name;
  const bool embedding = module.ends_with("embed_tokens");
  return pattern == (embedding ? "Embedding" : "Linear") ? Match::by_class : Match::none;
}

}  // namespace

std::string to_string(const QuantizationScheme& scheme) {
  return fmt::format("int{} {} {}", scheme.bits, scheme.symmetric ? "symmetric" : "asymmetric",
                     scheme.group_size < 0 ? std::string("channel") : fmt::format("g{}", scheme.group_size));
}

const QuantizationScheme* QuantizationConfig::scheme_for(std::string_view module) const {
  if (gptq) {
    const auto found = gptq_modules.find(module);
    return found == gptq_modules.end() ? nullptr : &found->second.scheme;
  }
  const std::vector<std::string> names = checkpoint_detail::spellings(module);
  for (const std::string& pattern : ignore) {
    if (match(names, pattern) != Match::none) return nullptr;
  }
  const QuantizationScheme* best = nullptr;
  Match best_match = Match::none;
  for (const QuantizationGroup& group : groups) {
    for (const std::string& target : group.targets) {
      const Match found = match(names, target);
      if (found > best_match) {
        best_match = found;
        best = &group.scheme;
      }
    }
  }
  return best;
}

namespace {

json parse_object(const std::string& text, const std::string& file) {
  refuse_repeated_keys(text, ErrorKind::checkpoint, file);
  json root;
  try {
    root = json::parse(text);
  } catch (const json::parse_error& error) {
    throw_error(ErrorKind::checkpoint, "{}: not valid JSON at byte {}", file, error.byte);
  }
  if (!root.is_object()) throw_error(ErrorKind::checkpoint, "{}: must be a JSON object", file);
  return root;
}

void read_compressed_tensors(const json& quantization, const std::string& file, QuantizationConfig& config,
                             Problems& problems) {
  check_top_fields(quantization, file, problems);
  const json groups = quantization.value("config_groups", json());
  if (!groups.is_object() || groups.empty()) {
    problems.add("config_groups must be an object with at least one group");
  } else {
    const std::string format = text_of(quantization, "format", "", problems);
    // Groups may differ from one another and say so themselves; any other word speaks of all of them.
    if (!format.empty() && format != kFormat && format != "mixed-precision")
      problems.add("format is '{}', supported are '{}' and, where groups name theirs, 'mixed-precision'", format,
                   kFormat);
    for (const auto& [name, value] : groups.items()) read_group(name, value, format, config, problems);
  }
  if (!absent(quantization, "ignore")) config.ignore = read_patterns(quantization.at("ignore"), "ignore", problems);
}

}  // namespace

QuantizationConfig parse_quantization_config(const std::string& config_json, const std::string& file) {
  const json root = parse_object(config_json, file);
  const json* quantization = absent(root, "quantization_config") ? nullptr : &root.at("quantization_config");
  if (quantization == nullptr && !absent(root, "text_config") && root.at("text_config").is_object() &&
      !absent(root.at("text_config"), "quantization_config")) {
    quantization = &root.at("text_config").at("quantization_config");
  }
  QuantizationConfig config;
  if (quantization == nullptr) return config;

  Problems problems;
  if (!quantization->is_object()) {
    problems.add("must be an object");
  } else if (!absent(*quantization, "quant_method") && quantization->at("quant_method") == "gptq") {
    config.gptq = checkpoint_detail::read_gptq_settings(*quantization, file, problems);
  } else {
    read_compressed_tensors(*quantization, file, config, problems);
  }
  problems.throw_if_any(ErrorKind::checkpoint, fmt::format("{}: quantization_config cannot be used", file));
  return config;
}

QuantizationConfig parse_quantize_config(const std::string& text, const std::string& file) {
  Problems problems;
  QuantizationConfig config;
  config.gptq = checkpoint_detail::read_gptq_settings(parse_object(text, file), file, problems);
  problems.throw_if_any(ErrorKind::checkpoint, fmt::format("{}: cannot be used", file));
  return config;
}

}  // namespace facet
