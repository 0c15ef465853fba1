#include "gemma4/tensor_check.h"

#include <set>

#include "facet/base/log.h"
#include "facet/checkpoint/prefixes.h"

namespace facet::gemma4 {
namespace {

// Dense, compressed-tensors, GPTQ. A bias that is not zero is refused when its module loads.
constexpr const char* kLinearSuffixes[] = {".weight",       ".weight_packed", ".weight_scale", ".weight_zero_point",
                                           ".weight_shape", ".qweight",       ".qzeros",       ".scales",
                                           ".g_idx",        ".bias"};

class Expected {
 public:
  Expected(const Checkpoint& checkpoint, Problems& problems) : checkpoint_(checkpoint), problems_(problems) {}

  void vector(const std::string& name, const std::string& place) {
    known_.insert(name);
    if (checkpoint_.find(name) == nullptr) problems_.add("{}: tensor {} is missing", place, name);
  }
  void linear(const std::string& module, const std::string& place) {
    for (const char* suffix : kLinearSuffixes) known_.insert(module + suffix);
    for (const char* values : {".weight", ".weight_packed", ".qweight"}) {
      if (checkpoint_.find(module + values) != nullptr) return;
    }
    problems_.add("{}: tensor {}.weight (or .weight_packed, .qweight) is missing", place, module);
  }
  const std::set<std::string>& known() const { return known_; }

 private:
  const Checkpoint& checkpoint_;
  Problems& problems_;
  std::set<std::string> known_;
};

void expect_layer(Expected& expected, const CheckpointFacts& facts, std::size_t index) {
  const LayerConfig& layer = facts.model.layers[index];
  const std::string base = fmt::format("{}layers.{}.", facts.prefix, index);
  const std::string place = fmt::format("layer {} ({} attention)", index, layer.sliding ? "sliding" : "global");
  for (const char* name :
       {"input_layernorm.weight", "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight",
        "post_feedforward_layernorm.weight", "layer_scalar", "self_attn.q_norm.weight", "self_attn.k_norm.weight"}) {
    expected.vector(base + name, place);
  }
  for (const char* name :
       {"self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
    expected.linear(base + name, place);
  }
  if (!layer.values_from_keys) expected.linear(base + "self_attn.v_proj", place);
}

}  // namespace

void check_tensors(const Checkpoint& checkpoint, const CheckpointFacts& facts) {
  Problems problems;
  Expected expected(checkpoint, problems);
  expected.linear(facts.prefix + "embed_tokens", "embedding");
  expected.vector(facts.prefix + "norm.weight", "final norm");
  for (std::size_t i = 0; i < facts.model.layers.size(); ++i) expect_layer(expected, facts, i);
  if (facts.own_head) expected.linear("lm_head", "output head");
  problems.throw_if_any(
      ErrorKind::checkpoint,
      fmt::format("{}: the model needs tensors that the checkpoint does not have:", checkpoint.directory().string()));
  std::int64_t unknown = 0;
  std::string first;
  for (const std::string& name : checkpoint.names()) {
    if (expected.known().count(name) != 0 || name == "lm_head.weight") continue;
    if (first.empty()) first = name;
    ++unknown;
  }
  unknown -= skipped_modules(checkpoint, facts.prefix).tensors;
  if (unknown > 0)
    log(LogLevel::warn, "{}: {} tensors are not used by the model, e.g. {}", checkpoint.directory().string(), unknown,
        first);
}

}  // namespace facet::gemma4
