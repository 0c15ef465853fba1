// Which modules a GPTQ file holds packed, and which inputs share a group there.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "facet/base/error.h"
#include "facet/base/log.h"
#include "facet/checkpoint/prefixes.h"
#include "gptq_weight.h"
#include "tensor_values.h"

namespace facet {

using checkpoint_detail::ceil_div;

namespace {

constexpr std::string_view kPacked = ".qweight";
// Kernels other than the reference want groups of at least this many inputs.
constexpr std::int64_t kUsualGroup = 32;

// The group of every input as the file says.
std::vector<std::int64_t> read_group_indices(const Tensor& tensor, std::int64_t group_size, const std::string& says) {
  if (tensor.type != TensorType::i32 || tensor.shape.size() != 1 || tensor.shape[0] == 0)
    throw_error(ErrorKind::checkpoint, "{}: {}; group indices must be I32 [in_features]", describe(tensor), says);
  const std::int64_t in = tensor.shape[0];
  const std::int64_t size = group_size < 0 ? in : group_size;
  const std::int64_t groups = ceil_div(in, size);
  std::vector<std::int64_t> indices, used(static_cast<std::size_t>(groups));
  for (std::int64_t i = 0; i < in; ++i) {
    const auto group = static_cast<std::int32_t>(checkpoint_detail::load_u32(tensor.data + 4 * i));
    if (group < 0 || group >= groups) {
      throw_error(
          ErrorKind::checkpoint,
          "{}: input {} is in group {}, but {} inputs in groups of {} have the groups 0..{}; correct group_size "
          "or fetch the file again",
          describe(tensor), i, group, in, size, groups - 1);
    }
    if (++used[static_cast<std::size_t>(group)] > size) {
      throw_error(ErrorKind::checkpoint,
                  "{}: group {} holds more than {} inputs (the {}th is input {}), but {}; correct group_size or fetch "
                  "the file again",
                  describe(tensor), group, size, size + 1, i, says);
    }
    indices.push_back(group);
  }
  return indices;
}

// The longest run length that never crosses from one group into another; -1 when there is only one group.
std::int64_t common_run(const std::vector<std::int64_t>& indices) {
  std::int64_t run = 0;
  for (std::size_t i = 1; i < indices.size(); ++i) {
    if (indices[i] != indices[i - 1]) run = std::gcd(run, static_cast<std::int64_t>(i));
  }
  return run == 0 ? -1 : run;
}

bool in_order(const std::vector<std::int64_t>& indices, std::int64_t group_size) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] != (group_size < 0 ? 0 : static_cast<std::int64_t>(i) / group_size)) return false;
  }
  return true;
}

GptqModule read_module(const Checkpoint& checkpoint, const GptqSettings& settings, const std::string& module,
                       const Tensor& packed) {
  const GptqModuleSettings own = settings.settings_for(module);
  if (own.excluded) {
    throw_error(ErrorKind::checkpoint,
                "{}: 'dynamic' in {} excludes {}, but the file holds it packed; remove the rule that excludes it",
                describe(packed), settings.file, module);
  }
  GptqModule result{own.scheme, own.scheme.group_size};
  const std::string says =
      fmt::format("{} says group_size {} and desc_act {}", settings.file, own.scheme.group_size,
                  own.activation_order ? (*own.activation_order ? "true" : "false") : std::string("nothing"));
  const Tensor* index = checkpoint.find(module + ".g_idx");
  if (index == nullptr) {
    if (own.activation_order.value_or(false)) {
      throw_error(ErrorKind::checkpoint,
                  "{}: {}, but there is no tensor {}.g_idx that says which inputs share a group; fetch the file again, "
                  "or set desc_act to false if the groups are contiguous",
                  describe(packed), says, module);
    }
    return result;
  }
  const std::vector<std::int64_t> indices = read_group_indices(*index, own.scheme.group_size, says);
  if (in_order(indices, own.scheme.group_size)) return result;
  if (own.activation_order == false) {
    const auto at = static_cast<std::size_t>(
        std::find_if(indices.begin(), indices.end(),
                     [&, i = std::int64_t{0}](std::int64_t group) mutable {
                       return group != (own.scheme.group_size < 0 ? 0 : i++ / own.scheme.group_size);
                     }) -
        indices.begin());
    throw_error(
        ErrorKind::checkpoint,
        "{}: input {} is in group {} where groups of contiguous inputs have {}, but {}; set desc_act to true if "
        "the group indices are meant, otherwise remove them",
        describe(*index), at, indices[at], static_cast<std::int64_t>(at) / own.scheme.group_size, says);
  }
  result.scheme.group_size = common_run(indices);
  return result;
}

// A quantized embedding table is packed along the vocabulary there, so its groups run across tokens.
void refuse_embedding(const Tensor& packed, const std::string& file) {
  throw_error(ErrorKind::checkpoint,
              "{}: GPTQ embeddings have groups of tokens, which no kernel here multiplies with; quantize without the "
              "embedding, or in compressed-tensors layout (see {})",
              describe(packed), file);
}

// "lm_head": true, and no such tensor: part of the files is missing, and the embedding must not stand in for the head.
void require_packed_head(const Checkpoint& checkpoint, const QuantizationConfig& config) {
  const auto& modules = config.gptq_modules;
  if (!config.gptq->packed_head || config.gptq->settings_for(kHeadModule).excluded) return;
  if (std::any_of(modules.begin(), modules.end(), [](const auto& entry) { return entry.first.ends_with(kHeadModule); }))
    return;
  throw_error(ErrorKind::checkpoint,
              "{}: lm_head is true, but {} holds no tensor {}{}; fetch the file that holds it, or set lm_head to false "
              "if the output head is not quantized",
              config.gptq->file, checkpoint.directory().string(), kHeadModule, kPacked);
}

void warn_of_scattered_groups(const QuantizationConfig& config) {
  std::int64_t scattered = 0;
  std::string first;
  for (const auto& [module, packed] : config.gptq_modules) {
    const std::int64_t run = packed.scheme.group_size;
    if (run == packed.stored_group_size || run < 0 || run >= kUsualGroup) continue;
    if (++scattered == 1) first = fmt::format("{} in runs of {}", module, run);
  }
  if (scattered == 0) return;
  log(LogLevel::warn,
      "{}: activation order scattered the groups of {} modules ({}). They are served exactly, with a scale for every "
      "run: up to 5 more bytes a weight, and only plugins that take such groups (reference) run them. Quantize with "
      "static groups or desc_act false for speed",
      config.gptq->file, scattered, first);
}

}  // namespace

QuantizationConfig read_quantization(const Checkpoint& checkpoint) {
  QuantizationConfig config =
      parse_quantization_config(checkpoint.config_json(), (checkpoint.directory() / "config.json").string());
  if (!config.quantized()) {
    constexpr const char* kSide = "quantize_config.json";
    if (const std::optional<std::string> text = checkpoint.file_text(kSide))
      config = parse_quantize_config(*text, (checkpoint.directory() / kSide).string());
  }
  if (!config.gptq) return config;
  for (const std::string& name : checkpoint.names()) {
    if (!name.ends_with(kPacked) || names_other_modality(name)) continue;
    const std::string module = name.substr(0, name.size() - kPacked.size());
    const Tensor& packed = *checkpoint.find(name);
    if (module.ends_with("embed_tokens")) refuse_embedding(packed, config.gptq->file);
    config.gptq_modules.emplace(module, read_module(checkpoint, *config.gptq, module, packed));
  }
  if (config.gptq_modules.empty()) {
    throw_error(ErrorKind::checkpoint,
                "{}: says GPTQ, but {} holds no tensor whose name ends in '{}'; use the config of the checkpoint that "
                "these files belong to",
                config.gptq->file, checkpoint.directory().string(), kPacked);
  }
  require_packed_head(checkpoint, config);
  warn_of_scattered_groups(config);
  return config;
}

}  // namespace facet
