#include "facet/checkpoint/gptq_writer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "facet/base/error.h"
#include "tensor_values.h"

namespace facet {

using checkpoint_detail::ceil_div;

namespace {

constexpr std::int64_t kPerWord = 8;
constexpr std::uint8_t kMiddle = 8;  // the zero code of symmetric weights

// One module between quantizing and writing; see add_quantized_module.
struct Module {
  std::string name;
  QuantizationScheme scheme;
  GptqZeros zeros;
  std::int64_t out;
  std::int64_t in;
  std::function<QuantizedMatrix()> produce;
  QuantizedMatrix matrix;

  std::int64_t group() const { return scheme.group_size < 0 ? in : scheme.group_size; }
  std::int64_t groups() const { return ceil_div(in, group()); }
  std::int64_t words() const { return ceil_div(in, kPerWord); }

  QuantizedMatrix& get() {
    if (produce) {
      matrix = std::exchange(produce, nullptr)();
      check();
    }
    return matrix;
  }

  void check() const {
    const auto codes = static_cast<std::size_t>(out * words());
    const auto cells = static_cast<std::size_t>(out * groups());
    const std::size_t zero_cells = scheme.symmetric ? 0 : cells;
    if (matrix.words.size() != codes || matrix.scales.size() != cells || matrix.zeros.size() != zero_cells) {
      throw_error(ErrorKind::run,
                  "{} as {}: the quantizer gave {} words, {} scales and {} zeros; [{}, {}] needs {}, {} and {}", name,
                  to_string(scheme), matrix.words.size(), matrix.scales.size(), matrix.zeros.size(), out, in, codes,
                  cells, zero_cells);
    }
  }
};

using Append = SafetensorsWriter::Append;

// One row of the file at a time: a whole transposed copy would double what a module needs.
void write_codes(Module& module, const Append& append) {
  const std::vector<std::uint32_t>& words = module.get().words;
  const std::int64_t row = module.words();
  std::vector<std::uint32_t> line(static_cast<std::size_t>(module.out));
  // Codes past the last input mean nothing; other programs expect zeros there.
  const auto used = static_cast<unsigned>(4 * (module.in % kPerWord));
  const std::uint32_t last_mask = used == 0 ? ~0u : (1u << used) - 1u;
  for (std::int64_t w = 0; w < row; ++w) {
    for (std::int64_t n = 0; n < module.out; ++n)
      line[static_cast<std::size_t>(n)] =
          words[static_cast<std::size_t>(n * row + w)] & (w + 1 == row ? last_mask : ~0u);
    append(line.data(), line.size() * sizeof(std::uint32_t));
  }
  module.matrix.words = {};
}

void write_zeros(Module& module, const Append& append) {
  const std::vector<std::uint8_t>& zeros = module.get().zeros;
  const std::int64_t groups = module.groups(), words = ceil_div(module.out, kPerWord);
  std::vector<std::uint32_t> line;
  for (std::int64_t group = 0; group < groups; ++group) {
    line.assign(static_cast<std::size_t>(words), 0u);
    for (std::int64_t n = 0; n < module.out; ++n) {
      std::uint32_t zero = module.scheme.symmetric ? kMiddle : zeros[static_cast<std::size_t>(n * groups + group)];
      if (module.zeros == GptqZeros::minus_one && zero-- == 0) {
        throw_error(ErrorKind::run,
                    "{}: the zero code of output {}, group {} is 0, which checkpoint_format 'gptq' cannot store; write "
                    "'gptq_v2'",
                    module.name, n, group);
      }
      line[static_cast<std::size_t>(n / kPerWord)] |= zero << (4 * (n % kPerWord));
    }
    append(line.data(), line.size() * sizeof(std::uint32_t));
  }
  module.matrix.zeros = {};
}

void write_scales(Module& module, const Append& append) {
  const std::vector<float>& scales = module.get().scales;
  const std::int64_t groups = module.groups();
  std::vector<std::uint16_t> line(static_cast<std::size_t>(module.out));
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t n = 0; n < module.out; ++n) {
      const float scale = scales[static_cast<std::size_t>(n * groups + group)];
      const std::optional<std::uint16_t> bits = exact_f16(scale);
      // Codes were chosen for this scale; rounding it now would silently change every weight of its group.
      if (!bits) {
        throw_error(ErrorKind::run,
                    "{}: the scale {} of output {}, group {} is not exact in F16, the type of GPTQ scales; write "
                    "compressed-tensors instead",
                    module.name, scale, n, group);
      }
      line[static_cast<std::size_t>(n)] = *bits;
    }
    append(line.data(), line.size() * sizeof(std::uint16_t));
  }
  module.matrix.scales = {};
}

void write_group_indices(const Module& module, const Append& append) {
  std::vector<std::int32_t> indices;
  for (std::int64_t i = 0; i < module.in; ++i) indices.push_back(static_cast<std::int32_t>(i / module.group()));
  append(indices.data(), indices.size() * sizeof(std::int32_t));
}

const QuantizationGroup& base_group(const std::vector<QuantizationGroup>& groups) {
  const auto base = std::find_if(groups.begin(), groups.end(), [](const QuantizationGroup& group) {
    return std::find(group.targets.begin(), group.targets.end(), "Linear") != group.targets.end();
  });
  if (base == groups.end())
    throw_error(ErrorKind::usage, "GPTQ files need settings for all linear layers; write compressed-tensors instead");
  return *base;
}

// A module name as a pattern that matches nothing else.
std::string literal_pattern(const std::string& name) {
  std::string pattern;
  for (const char c : name) {
    if (c == '.' || c == '\\' || std::string_view("*+?()[]{}^$|").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern + "$";
}

std::string rule_pattern(const std::string& target) {
  return target.starts_with("re:") ? target.substr(3) : literal_pattern(target);
}

void check_group(const QuantizationGroup& group) {
  if (group.scheme.bits != 4) {
    throw_error(ErrorKind::usage, "{} is {}: GPTQ files are written with 4 bits only; write compressed-tensors instead",
                fmt::join(group.targets, ", "), to_string(group.scheme));
  }
  for (const std::string& target : group.targets) {
    if (target == "Embedding" || target.find("embed_tokens") != std::string::npos) {
      throw_error(ErrorKind::usage,
                  "{}: GPTQ files hold the embedding as bf16; quantize an output head of its own instead, or write "
                  "compressed-tensors",
                  target);
    }
  }
}

std::string with_config_entry(const std::string& config_json, nlohmann::ordered_json settings) {
  nlohmann::ordered_json root;
  try {
    root = nlohmann::ordered_json::parse(config_json);
  } catch (const nlohmann::ordered_json::parse_error& error) {
    throw_error(ErrorKind::checkpoint, "config.json: not valid JSON at byte {}", error.byte);
  }
  if (!root.is_object()) throw_error(ErrorKind::checkpoint, "config.json: must be a JSON object");
  if (root.contains("quantization_config") && !root["quantization_config"].is_null())
    throw_error(ErrorKind::checkpoint, "config.json: already has a quantization_config");
  root["quantization_config"] = std::move(settings);
  return root.dump(2) + "\n";
}

}  // namespace

GptqZeros gptq_zeros(const std::vector<QuantizationGroup>& groups) {
  const bool symmetric =
      std::all_of(groups.begin(), groups.end(), [](const QuantizationGroup& group) { return group.scheme.symmetric; });
  return symmetric ? GptqZeros::minus_one : GptqZeros::plain;
}

void add_gptq_module(SafetensorsWriter& writer, const std::string& name, const QuantizationScheme& scheme,
                     GptqZeros zeros, std::int64_t out_features, std::int64_t in_features,
                     std::function<QuantizedMatrix()> produce) {
  if (scheme.bits != 4 || scheme.group_size == 0 || scheme.group_size < -1) {
    throw_error(ErrorKind::run, "{}: {} bits with group size {} cannot be written as GPTQ", name, scheme.bits,
                scheme.group_size);
  }
  auto module =
      std::make_shared<Module>(Module{name, scheme, zeros, out_features, in_features, std::move(produce), {}});
  const std::int64_t groups = module->groups();
  writer.add(name + ".qweight", TensorType::i32, {module->words(), out_features},
             [module](const Append& append) { write_codes(*module, append); });
  writer.add(name + ".qzeros", TensorType::i32, {groups, ceil_div(out_features, kPerWord)},
             [module](const Append& append) { write_zeros(*module, append); });
  writer.add(name + ".scales", TensorType::f16, {groups, out_features},
             [module](const Append& append) { write_scales(*module, append); });
  writer.add(name + ".g_idx", TensorType::i32, {in_features},
             [module](const Append& append) { write_group_indices(*module, append); });
}

std::string with_gptq_config(const std::string& config_json, const std::vector<QuantizationGroup>& groups,
                             const std::vector<std::string>& ignore) {
  using nlohmann::ordered_json;
  for (const QuantizationGroup& group : groups) check_group(group);
  const QuantizationScheme base = base_group(groups).scheme;
  // What is left dense must be decided before any other rule can match it.
  ordered_json dynamic = ordered_json::object();
  for (const std::string& pattern : ignore) {
    if (pattern != "lm_head") dynamic["-:" + rule_pattern(pattern)] = ordered_json::object();
  }
  for (const bool regular : {false, true}) {  // names are more specific than expressions
    for (const QuantizationGroup& group : groups) {
      for (const std::string& target : group.targets) {
        if (target == "Linear" || target.starts_with("re:") != regular) continue;
        dynamic["+:" + rule_pattern(target)] = {
            {"bits", group.scheme.bits}, {"group_size", group.scheme.group_size}, {"sym", group.scheme.symmetric}};
      }
    }
  }
  const char* format = to_string(gptq_zeros(groups));
  const bool packed_head = std::any_of(groups.begin(), groups.end(), [](const QuantizationGroup& group) {
    return std::any_of(group.targets.begin(), group.targets.end(),
                       [](const std::string& target) { return target.ends_with(kHeadModule); });
  });
  ordered_json settings = {{"quant_method", "gptq"},
                           {"bits", base.bits},
                           {"group_size", base.group_size},
                           {"sym", base.symmetric},
                           {"desc_act", false},
                           {"lm_head", packed_head},
                           {"checkpoint_format", format},
                           {"format", format},
                           {"pack_dtype", "int32"},
                           {"meta", {{"quantizer", ordered_json::array({"facet"})}}}};
  if (!dynamic.empty()) settings["dynamic"] = std::move(dynamic);
  return with_config_entry(config_json, std::move(settings));
}

}  // namespace facet
