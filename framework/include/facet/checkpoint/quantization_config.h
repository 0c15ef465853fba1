// Which modules of a checkpoint are quantized and how, from the quantization_config of its config.json
// (compressed-tensors).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace facet {

// How the weights of one module are stored.
struct QuantizationScheme {
  int bits = 4;  // 4 or 8
  bool symmetric = true;
  std::int64_t group_size = -1;  // inputs that share a scale; -1: a whole row (strategy "channel")

  bool operator==(const QuantizationScheme&) const = default;
};

// "int4 symmetric g128", "int8 asymmetric channel"
std::string to_string(const QuantizationScheme& scheme);

struct QuantizationGroup {
  std::string name;  // "group_0"
  std::vector<std::string>
      targets;  // module name, "re:" + regular expression matched from the start of the name, or class
  QuantizationScheme scheme;
};

// Default-constructed: a checkpoint without quantization.
struct QuantizationConfig {
  std::vector<QuantizationGroup> groups;
  std::vector<std::string> ignore;

  bool quantized() const noexcept { return !groups.empty(); }
  // The scheme of a module (a name without ".weight"), null when it is dense. The most specific target wins: exact
  // name, then regular expression, then class; among equals the first. Class "Linear" covers every module but
  // embed_tokens, which is "Embedding". Names are tried as given and with "model.language_model." and "model."
  // exchanged, because tools write either. A module matched by `ignore` is dense.
  const QuantizationScheme* scheme_for(std::string_view module) const;
};

// Reads "quantization_config" (at the top or inside "text_config") of a config.json; absent or null: nothing is
// quantized. Throws Error(checkpoint) that starts with `file` and lists every problem: malformed JSON, a quant_method
// other than "compressed-tensors", a format other than "pack-quantized", bits other than 4 and 8, float types,
// strategies other than group and channel, activation order with run-time indices, quantized activations, an unknown
// packing order, unknown fields of weights, a bad regular expression.
QuantizationConfig parse_quantization_config(const std::string& config_json, const std::string& file = "config.json");

}  // namespace facet
