#include "gemma4/gemma4_plan.h"

#include <algorithm>
#include <set>

#include "facet/base/log.h"
#include "facet/base/text.h"
#include "facet/checkpoint/linear_weight.h"
#include "facet/checkpoint/prefixes.h"
#include "facet/sdk/kv_rows.h"
#include "gemma4/kv_groups.h"
#include "gemma4/rule_check.h"

namespace facet::gemma4 {
namespace {

constexpr std::uint64_t kFloat = sizeof(float);

// lm_head may be absent (tied), an identical copy (dropped), or different (the file wins, with a warning).
bool has_own_head(const Checkpoint& checkpoint, const std::string& prefix, bool tied) {
  const Tensor* head = checkpoint.find("lm_head.weight");
  for (const char* packed : {"lm_head.weight_packed", "lm_head.qweight"}) {
    if (head == nullptr && checkpoint.find(packed) != nullptr) return true;
  }
  if (head == nullptr) {
    if (!tied) {
      throw_error(ErrorKind::checkpoint, "{}: tie_word_embeddings is false, but there is no tensor lm_head.weight",
                  checkpoint.directory().string());
    }
    return false;
  }
  const Tensor* table = checkpoint.find(prefix + "embed_tokens.weight");
  if (table != nullptr && same_contents(*head, *table)) return false;
  if (tied)
    log(LogLevel::warn,
        "config.json ties the output head to the embedding, but lm_head.weight differs from it; the file's lm_head is "
        "used");
  return true;
}

}  // namespace

CheckpointFacts read_facts(const Checkpoint& checkpoint) {
  CheckpointFacts facts;
  const std::string file = (checkpoint.directory() / "config.json").string();
  facts.model = parse_config(checkpoint.config_json(), file);
  facts.quantization = read_quantization(checkpoint);
  facts.prefix = weight_prefix(checkpoint);
  facts.own_head = has_own_head(checkpoint, facts.prefix, facts.model.tied_head);
  return facts;
}

std::string full_name(const CheckpointFacts& facts, const std::string& module) {
  if (module == "lm_head") return facts.own_head ? "lm_head" : facts.prefix + "embed_tokens";
  return facts.prefix + module;
}

LinearFormat stored_format(const CheckpointFacts& facts, const std::string& full_module, std::int64_t in_features) {
  const QuantizationScheme* scheme = facts.quantization.scheme_for(full_module);
  if (scheme == nullptr) return {};
  return {scheme->bits == 4 ? abi::WeightFormat::int4 : abi::WeightFormat::int8,
          scheme->group_size < 0 ? in_features : scheme->group_size, scheme->symmetric};
}

ModelPlan::ModelPlan(const Config& config, CheckpointFacts facts, PluginRegistry& registry, const DeviceProfile& device)
    : facts_(std::move(facts)),
      device_(device),
      assembler_(config, registry, device.device(), device.activation_type()),
      max_step_tokens_(config.engine.max_step_tokens),
      logit_rows_(std::min(kLogitRows, max_step_tokens_)),
      max_context_(config.engine.max_context) {
  if (max_context_ > facts_.model.max_positions) {
    throw_error(ErrorKind::config, "{}: engine.max_context: {} is more than the {} positions of the model; lower it",
                config.file.string(), max_context_, facts_.model.max_positions);
  }
  plan_attention(config, registry);
  plan_layers();
  plan_head(config.model.head);
  check_rules(config, specs_);
  lay_out_activations();
  for (const auto& module : attention_) workspace_bytes_ = std::max(workspace_bytes_, module->workspace_bytes());
  for (const LinearGroup* group : linears_) {
    for (const LinearModule& module : group->modules())
      workspace_bytes_ = std::max(workspace_bytes_, module.workspace_bytes());
  }
}

void ModelPlan::plan_attention(const Config& config, PluginRegistry& registry) {
  std::vector<KvGroupSpec> specs;
  for (std::size_t i = 0; i < facts_.model.layers.size(); ++i) {
    const std::size_t group = kv_group_of(specs, facts_.model.layers[i]);
    specs[group].layers.push_back(static_cast<std::int32_t>(i));
  }
  const bool any_shared =
      std::any_of(specs.begin(), specs.end(), [](const KvGroupSpec& spec) { return spec.turned_channels > 0; });
  if (config.engine.kv_form == "shared" && !any_shared) {
    throw_error(ErrorKind::config,
                "{}: engine.kv_form: 'shared', and no layer of this model makes its values from its keys and turns a "
                "part of them; leave the key out",
                config.file.string());
  }
  const std::int64_t chunk =
      config.engine.prefill_chunk > 0 ? config.engine.prefill_chunk : config.engine.max_step_tokens;
  const KvLimits limits{config.engine.max_sequences, max_context_, std::min(chunk, max_context_), max_step_tokens_};
  std::vector<KvGroup> groups;
  for (const KvGroupSpec& spec : specs) {
    AttentionAssembly assembly =
        assemble_attention(config, registry, device_.device(), spec,
                           {facts_.model.query_heads, 1.0f, device_.activation_type()}, limits, max_step_tokens_);
    groups.push_back(std::move(assembly.cache));
    attention_.push_back(std::move(assembly.attention));
  }
  kv_ = std::make_unique<KvManager>(std::move(groups), limits.max_sequences);
  step_arrays_ = std::make_unique<StepArrays>(*kv_, max_step_tokens_, limits.max_sequences, max_context_);
}

LinearSpec ModelPlan::spec(std::int32_t layer, std::vector<std::string> names, std::vector<std::int64_t> out,
                           std::vector<abi::LinearRole> roles, abi::LinearRole stacked, std::int64_t in) const {
  LinearSpec made;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string name = fmt::format("layers.{}.{}", layer, names[i]);
    made.parts.push_back({name, out[i], roles[i], stored_format(facts_, full_name(facts_, name), in)});
  }
  made.stacked_role = stacked;
  made.in_features = in;
  made.layer = layer;
  made.max_rows = max_step_tokens_;
  return made;
}

LinearGroup ModelPlan::plan_linear(LinearSpec spec) {
  specs_.push_back(std::move(spec));
  return assembler_.plan(specs_.back());
}

void ModelPlan::plan_layers() {
  using Role = abi::LinearRole;
  const ModelConfig& model = facts_.model;
  layers_.reserve(model.layers.size());
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const LayerConfig& layer = model.layers[i];
    const auto index = static_cast<std::int32_t>(i);
    const std::int64_t q = model.query_heads * layer.head_dim, kv = layer.kv_heads * layer.head_dim;
    LinearSpec qkv = layer.values_from_keys ? spec(index, {"self_attn.q_proj", "self_attn.k_proj"}, {q, kv},
                                                   {Role::q, Role::k}, Role::qk, model.hidden)
                                            : spec(index, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                                                   {q, kv, kv}, {Role::q, Role::k, Role::v}, Role::qkv, model.hidden);
    qkv.fusions = abi::kFuseResidualNorm;
    LinearSpec gate_up = spec(index, {"mlp.gate_proj", "mlp.up_proj"}, {model.feed_forward, model.feed_forward},
                              {Role::gate, Role::up}, Role::gate_up, model.hidden);
    gate_up.fusions = abi::kFuseResidualNorm | abi::kFuseGeluGate;
    const auto attention = std::find_if(attention_.begin(), attention_.end(), [&](const auto& module) {
      const std::vector<std::int32_t>& members = module->group().layers;
      return std::find(members.begin(), members.end(), index) != members.end();
    });
    layers_.push_back(
        {plan_linear(std::move(qkv)),
         plan_linear(spec(index, {"self_attn.o_proj"}, {model.hidden}, {Role::o}, Role::o, q)),
         plan_linear(std::move(gate_up)),
         plan_linear(spec(index, {"mlp.down_proj"}, {model.hidden}, {Role::down}, Role::down, model.feed_forward)),
         attention->get()});
  }
  for (LayerPlan& layer : layers_)
    linears_.insert(linears_.end(), {&layer.qkv, &layer.output, &layer.gate_up, &layer.down});
}

void ModelPlan::plan_head(const std::string& format) {
  LinearSpec head;
  LinearFormat stored = stored_format(facts_, full_name(facts_, "lm_head"), facts_.model.hidden);
  if (format == "bf16") stored = {};
  // Group 128 is the field's usual choice for tables.
  if (format == "int8") stored = {abi::WeightFormat::int8, 128, true};
  if (format == "int4") stored = {abi::WeightFormat::int4, 128, true};
  head.parts.push_back({"lm_head", facts_.model.vocabulary, abi::LinearRole::head, stored});
  head.stacked_role = abi::LinearRole::head;
  head.in_features = facts_.model.hidden;
  head.max_rows = logit_rows_;
  head.float_output = true;
  head.fusions = abi::kFuseResidualNorm;
  head_ = std::make_unique<LinearGroup>(plan_linear(std::move(head)));
  linears_.push_back(head_.get());
}

void ModelPlan::lay_out_activations() {
  const ModelConfig& model = facts_.model;
  std::int64_t wide = 2 * model.feed_forward, inner = model.feed_forward, queries = 0, live[2] = {0, 0};
  for (const LayerConfig& layer : model.layers) {
    const std::int64_t q = model.query_heads * layer.head_dim;
    wide = std::max(wide, q + (layer.values_from_keys ? 1 : 2) * layer.kv_heads * layer.head_dim);
    inner = std::max(inner, q);
    queries = std::max(queries, q);
    std::int64_t& pairs = live[layer.sliding ? 0 : 1];
    pairs = std::max(pairs, layer.rotary_live);
  }
  Arena arena;
  const auto element = static_cast<std::uint64_t>(sdk::element_bytes(device_.activation_type()));
  const auto rows = [&](std::int64_t count, std::int64_t width, std::uint64_t bytes) {
    return arena.add(static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(width) * bytes);
  };
  ActivationLayout& layout = activation_layout_;
  for (std::uint64_t& hidden : layout.hidden) hidden = rows(max_step_tokens_, model.hidden, kFloat);
  layout.normed = rows(max_step_tokens_, model.hidden, element);
  layout.update = rows(max_step_tokens_, model.hidden, element);
  layout.wide = rows(max_step_tokens_, wide, element);
  layout.inner = rows(max_step_tokens_, inner, element);
  layout.queries = rows(max_step_tokens_, queries, element);
  for (int kind = 0; kind < 2; ++kind) {
    layout.cosine[kind] = rows(max_step_tokens_, live[kind], kFloat);
    layout.sine[kind] = rows(max_step_tokens_, live[kind], kFloat);
  }
  layout.rows = rows(logit_rows_, model.hidden, kFloat);
  layout.row_index = rows(logit_rows_, 1, sizeof(std::int32_t));
  layout.logits = rows(logit_rows_, model.vocabulary, kFloat);
  layout.best = rows(logit_rows_, 1, sizeof(std::int32_t));
  layout.sampling = rows(logit_rows_, 1, sizeof(RowSampling));
  layout.step = arena.add(step_arrays_->bytes());
  layout.bytes = arena.bytes();
}

std::uint64_t ModelPlan::norm_bytes() const {
  // Four norms of the hidden width and two of the head size a layer, the final norm, and the rotary frequencies of the
  // two kinds.
  Arena arena;
  for (const LayerConfig& layer : facts_.model.layers) {
    for (int i = 0; i < 4; ++i) arena.add(static_cast<std::uint64_t>(facts_.model.hidden) * kFloat);
    for (int i = 0; i < 2; ++i) arena.add(static_cast<std::uint64_t>(layer.head_dim) * kFloat);
    arena.add(static_cast<std::uint64_t>(layer.rotary_live) * kFloat);
  }
  arena.add(static_cast<std::uint64_t>(facts_.model.hidden) * kFloat);
  return arena.bytes();
}

// Weights that kernels read where the checkpoint has them; their scales are floats beside the file, and a converted
// head is all there.
void ModelPlan::count_in_place(const LinearModule& module, MemoryPlan& plan) const {
  for (const LinearSpec::Part& part : module.parts()) {
    const std::uint64_t values = part.format.value_bytes(part.out_features, module.in_features());
    const bool stored = stored_format(facts_, full_name(facts_, part.name), module.in_features()) == part.format;
    const bool in_file = part.format.format == abi::WeightFormat::bf16 || facts_.quantization.codes_usable_in_file();
    (stored && in_file ? plan.weights_mapped : plan.weights_unpacked) += values;
    plan.weights_unpacked += part.format.side_bytes(part.out_features, module.in_features());
  }
}

// The embedding is read in place whatever the head does; where the head reads the same bytes they are counted once.
void ModelPlan::count_embedding(MemoryPlan& plan) const {
  const std::int64_t rows = facts_.model.vocabulary, width = facts_.model.hidden;
  const LinearFormat format = stored_format(facts_, facts_.prefix + "embed_tokens", width);
  const LinearModule& head = head_->modules().front();
  const bool shared = !facts_.own_head && head.reads_in_place() && head.parts().front().format == format;
  if (!shared) plan.weights_mapped += format.value_bytes(rows, width);
  plan.weights_unpacked += format.side_bytes(rows, width);
  plan.weights += device_.placed_bytes(format.value_bytes(rows, width), format.side_bytes(rows, width));
}

MemoryPlan ModelPlan::memory() const {
  MemoryPlan plan;
  std::set<WeightStore::Key> keys;
  for (const LinearGroup* group : linears_) {
    for (const LinearModule& module : group->modules()) {
      for (const WeightStore::Key& key : module.packed_keys()) {
        if (keys.insert(key).second) plan.weights += key.bytes;
      }
      if (module.reads_in_place()) count_in_place(module, plan);
    }
  }
  count_embedding(plan);
  plan.weights += norm_bytes();
  for (const KvGroup& group : kv_->groups())
    (group.spec.window > 0 ? plan.kv_sliding : plan.kv_global) += group.plan.pool_bytes;
  plan.workspace = Workspace::allocated_bytes(workspace_bytes_);
  plan.activations = activation_layout_.bytes;
  plan.sequences_that_fit = kv_->sequences_that_fit();
  return plan;
}

}  // namespace facet::gemma4
