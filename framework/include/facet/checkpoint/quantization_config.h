// Which modules of a checkpoint are quantized and how: compressed-tensors or GPTQ, as its config.json says.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace facet {

// The output head, where it is a module of its own.
inline constexpr const char* kHeadModule = "lm_head";

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

// How GPTQ files store the zero code of a group: one less than it is (checkpoint_format "gptq"), or as it is
// ("gptq_v2").
enum class GptqZeros { minus_one, plain };
// "gptq" or "gptq_v2"
const char* to_string(GptqZeros zeros) noexcept;

// What a GPTQ config says about a module.
struct GptqModuleSettings {
  QuantizationScheme scheme;             // group_size as the file stores it
  std::optional<bool> activation_order;  // desc_act; absent: whatever g_idx says
  bool excluded = false;
};

// The quantization_config (or quantize_config.json) of a GPTQ checkpoint.
struct GptqSettings {
  std::string file;  // that says so, for errors
  GptqZeros zeros = GptqZeros::minus_one;
  // Written by a program that subtracts the one from whole words, so that a zero code 0 borrows from its neighbour.
  bool whole_word_zeros = false;
  bool packed_head = false;  // "lm_head": the output head is packed, too
  GptqModuleSettings base;
  struct Rule {
    std::string written;  // "-:.*down_proj"
    std::string pattern;  // a regular expression matched from the start of the name
    GptqModuleSettings settings;
  };
  std::vector<Rule> rules;  // "dynamic"; the first that matches decides

  // Names are tried in both nestings, as in QuantizationConfig::scheme_for.
  GptqModuleSettings settings_for(std::string_view module) const;
};

// A module that a GPTQ file holds packed.
struct GptqModule {
  // As the engine sees it: group_size is the longest run of inputs that share a group everywhere, so it is smaller than
  // the stored one when activation order scattered the groups.
  QuantizationScheme scheme;
  std::int64_t stored_group_size = -1;
};

// Default-constructed: a checkpoint without quantization.
struct QuantizationConfig {
  std::vector<QuantizationGroup> groups;
  std::vector<std::string> ignore;
  // Set for GPTQ, where the files and not the config say which modules are quantized: read_quantization() fills
  // gptq_modules, parse_quantization_config() alone does not.
  std::optional<GptqSettings> gptq;
  std::map<std::string, GptqModule, std::less<>> gptq_modules;

  bool quantized() const noexcept { return !groups.empty() || gptq.has_value(); }
  // False when codes are stored transposed, so that they are copied at load even for kernels that read weights in
  // place.
  bool codes_usable_in_file() const noexcept { return !gptq.has_value(); }
  // The scheme of a module (a name without ".weight"), null when it is dense. The most specific target wins: exact
  // name, then regular expression, then class; among equals the first. Class "Linear" covers every module but
  // embed_tokens, which is "Embedding". Names are tried as given and with "model.language_model." and "model."
  // exchanged, because tools write either. A module matched by `ignore` is dense. GPTQ: looked up in gptq_modules.
  const QuantizationScheme* scheme_for(std::string_view module) const;
};

// Reads "quantization_config" (at the top or inside "text_config") of a config.json; absent or null: nothing is
// quantized. Throws Error(checkpoint) that starts with `file` and lists every problem: malformed JSON, a quant_method
// other than "compressed-tensors" and "gptq", unknown fields that could change how codes are stored, a bad regular
// expression.
//   compressed-tensors: a format other than "pack-quantized", bits other than 4 and 8, float types, strategies other
//   than group and channel, activation order with run-time indices, quantized activations, an unknown packing order.
//   GPTQ: bits other than 4, a checkpoint_format other than "gptq" and "gptq_v2", words other than int32, rotations,
//   adapters.
QuantizationConfig parse_quantization_config(const std::string& config_json, const std::string& file = "config.json");
// The same for the text of a quantize_config.json, which older GPTQ writers put beside config.json instead.
QuantizationConfig parse_quantize_config(const std::string& text, const std::string& file = "quantize_config.json");

}  // namespace facet
