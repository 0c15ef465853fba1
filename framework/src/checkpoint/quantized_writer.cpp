// The tensors and the config entry of compressed-tensors.
#include "facet/checkpoint/quantized_writer.h"

#include <nlohmann/json.hpp>

#include "facet/base/error.h"
#include "facet/checkpoint/float_bits.h"

namespace facet {

using nlohmann::ordered_json;

namespace {

ordered_json parse_config_object(const std::string& text) {
  ordered_json root;
  try {
    root = ordered_json::parse(text);
  } catch (const ordered_json::parse_error& error) {
    throw_error(ErrorKind::checkpoint, "config.json: not valid JSON at byte {}", error.byte);
  }
  if (!root.is_object()) throw_error(ErrorKind::checkpoint, "config.json: must be a JSON object");
  return root;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// One module between quantizing and writing. The writer may place scales far behind codes, so each part is freed by
// itself.
struct Module {
  std::string name;
  QuantizationScheme scheme;
  std::int64_t out;
  std::int64_t in;
  std::function<QuantizedMatrix()> produce;
  bool produced = false;
  QuantizedMatrix matrix;

  std::int64_t per_word() const { return 32 / scheme.bits; }
  std::int64_t groups() const { return scheme.group_size < 0 ? 1 : ceil_div(in, scheme.group_size); }

  QuantizedMatrix& get() {
    if (!produced) {
      matrix = produce();
      produce = nullptr;
      produced = true;
      check();
    }
    return matrix;
  }

  void check() const {
    const auto words = static_cast<std::size_t>(out * ceil_div(in, per_word()));
    const auto cells = static_cast<std::size_t>(out * groups());
    const std::size_t zeros = scheme.symmetric ? 0 : cells;
    if (matrix.words.size() != words || matrix.scales.size() != cells || matrix.zeros.size() != zeros) {
      throw_error(ErrorKind::run,
                  "{} as {}: the quantizer gave {} words, {} scales and {} zeros; [{}, {}] needs {}, {} and {}", name,
                  to_string(scheme), matrix.words.size(), matrix.scales.size(), matrix.zeros.size(), out, in, words,
                  cells, zeros);
    }
  }
};

void write_scales(Module& module, const SafetensorsWriter::Append& append) {
  std::vector<std::uint16_t> bits;
  bits.reserve(module.get().scales.size());
  for (const float scale : module.matrix.scales) {
    bits.push_back(float_to_bf16(scale));
    // Codes were chosen for this scale; rounding it now would silently change every weight of its group.
    if (bf16_to_float(bits.back()) != scale) {
      throw_error(ErrorKind::run, "{}: the quantizer gave the scale {}, which is not exact in bf16", module.name,
                  scale);
    }
  }
  append(bits.data(), bits.size() * sizeof(std::uint16_t));
  module.matrix.scales = {};
}

void write_zeros(Module& module, const SafetensorsWriter::Append& append) {
  const std::vector<std::uint8_t>& zeros = module.get().zeros;
  const std::int64_t groups = module.groups();
  std::vector<std::uint32_t> words(static_cast<std::size_t>(ceil_div(module.out, module.per_word()) * groups));
  for (std::int64_t row = 0; row < module.out; ++row) {
    const auto shift = static_cast<unsigned>(module.scheme.bits * (row % module.per_word()));
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::uint32_t zero = zeros[static_cast<std::size_t>(row * groups + group)];
      words[static_cast<std::size_t>(row / module.per_word() * groups + group)] |= zero << shift;
    }
  }
  append(words.data(), words.size() * sizeof(std::uint32_t));
  module.matrix.zeros = {};
}

}  // namespace

void add_quantized_module(SafetensorsWriter& writer, const std::string& name, const QuantizationScheme& scheme,
                          std::int64_t out_features, std::int64_t in_features,
                          std::function<QuantizedMatrix()> produce) {
  if ((scheme.bits != 4 && scheme.bits != 8) || scheme.group_size == 0 || scheme.group_size < -1) {
    throw_error(ErrorKind::run, "{}: {} bits with group size {} cannot be written", name, scheme.bits,
                scheme.group_size);
  }
  auto module =
      std::make_shared<Module>(Module{name, scheme, out_features, in_features, std::move(produce), false, {}});
  const std::int64_t per_word = module->per_word();
  const std::int64_t groups = module->groups();
  using Append = SafetensorsWriter::Append;
  writer.add(name + ".weight_packed", TensorType::i32, {out_features, ceil_div(in_features, per_word)},
             [module](const Append& append) {
               std::vector<std::uint32_t>& words = module->get().words;
               append(words.data(), words.size() * sizeof(std::uint32_t));
               words = {};
             });
  writer.add(name + ".weight_scale", TensorType::bf16, {out_features, groups},
             [module](const Append& append) { write_scales(*module, append); });
  if (!scheme.symmetric) {
    writer.add(name + ".weight_zero_point", TensorType::i32, {ceil_div(out_features, per_word), groups},
               [module](const Append& append) { write_zeros(*module, append); });
  }
  writer.add(name + ".weight_shape", TensorType::i64, {2}, [out_features, in_features](const Append& append) {
    const std::int64_t shape[2] = {out_features, in_features};
    append(shape, sizeof shape);
  });
}

std::string with_own_head(const std::string& config_json) {
  ordered_json root = parse_config_object(config_json);
  root["tie_word_embeddings"] = false;
  if (root.contains("text_config") && root["text_config"].is_object())
    root["text_config"]["tie_word_embeddings"] = false;
  return root.dump(2) + "\n";
}

std::string with_quantization_config(const std::string& config_json, const std::vector<QuantizationGroup>& groups,
                                     const std::vector<std::string>& ignore) {
  ordered_json root = parse_config_object(config_json);
  if (root.contains("quantization_config") && !root["quantization_config"].is_null()) {
    throw_error(ErrorKind::checkpoint, "config.json: already has a quantization_config");
  }
  ordered_json config_groups = ordered_json::object();
  for (const QuantizationGroup& group : groups) {
    const bool channel = group.scheme.group_size < 0;
    ordered_json weights = {{"num_bits", group.scheme.bits},
                            {"type", "int"},
                            {"symmetric", group.scheme.symmetric},
                            {"group_size", channel ? ordered_json() : ordered_json(group.scheme.group_size)},
                            {"strategy", channel ? "channel" : "group"},
                            {"dynamic", false}};
    config_groups[group.name] = {{"targets", group.targets},
                                 {"weights", std::move(weights)},
                                 {"input_activations", nullptr},
                                 {"output_activations", nullptr},
                                 {"format", "pack-quantized"}};
  }
  root["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                 {"format", "pack-quantized"},
                                 {"quantization_status", "compressed"},
                                 {"config_groups", std::move(config_groups)},
                                 {"ignore", ignore}};
  return root.dump(2) + "\n";
}

}  // namespace facet
