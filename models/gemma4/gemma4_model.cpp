#include "gemma4/gemma4_model.h"

#include <algorithm>
#include <cstring>

#include "facet/base/log.h"
#include "facet/checkpoint/prefixes.h"

namespace facet::gemma4 {
namespace {

// Pages of the file are given back after this many modules: packed copies replace them.
constexpr std::size_t kModulesBetweenReleases = 8;

}  // namespace

Gemma4Model::Gemma4Model(ModelPlan& plan, const Checkpoint& checkpoint, Backend& backend, WeightStore& store,
                         const QuantizeWeight& quantize, const std::function<void(std::size_t, std::size_t)>& progress)
    : plan_(plan),
      backend_(backend),
      embedding_(load_linear(checkpoint, plan.facts().quantization, plan.facts().prefix + "embed_tokens",
                             plan.facts().model.vocabulary, plan.facts().model.hidden)),
      vectors_(backend.allocate(plan.norm_bytes(), 64, kWeightsTag)),
      activations_(backend.allocate(plan.activations().bytes, 64, kActivationsTag)),
      workspace_(backend.allocate(plan.workspace_bytes(), 64, kWorkspaceTag)) {
  const std::string skipped = skipped_modules(checkpoint, plan.facts().prefix).text();
  if (!skipped.empty()) log(LogLevel::info, "{}", skipped);
  load_vectors(checkpoint);
  load_linears(checkpoint, store, quantize, progress);
  plan.kv().allocate(backend);
}

void Gemma4Model::load_vectors(const Checkpoint& checkpoint) {
  const CheckpointFacts& facts = plan_.facts();
  Arena arena;
  const auto place = [&](const std::vector<float>& values) {
    float* target = reinterpret_cast<float*>(vectors_.as<char>() + arena.add(values.size() * sizeof(float)));
    std::memcpy(target, values.data(), values.size() * sizeof(float));
    return target;
  };
  for (std::size_t i = 0; i < facts.model.layers.size(); ++i) {
    const LayerConfig& layer = facts.model.layers[i];
    const std::string base = fmt::format("{}layers.{}.", facts.prefix, i);
    const auto vector = [&](const char* name, std::int64_t count) {
      return place(load_vector(checkpoint, base + name, count));
    };
    LayerWeights weights{};
    weights.input_norm = vector("input_layernorm.weight", facts.model.hidden);
    weights.post_attention_norm = vector("post_attention_layernorm.weight", facts.model.hidden);
    weights.pre_feed_forward_norm = vector("pre_feedforward_layernorm.weight", facts.model.hidden);
    weights.post_feed_forward_norm = vector("post_feedforward_layernorm.weight", facts.model.hidden);
    weights.query_norm = vector("self_attn.q_norm.weight", layer.head_dim);
    weights.key_norm = vector("self_attn.k_norm.weight", layer.head_dim);
    weights.inverse_frequency = place(inverse_frequencies(layer));
    weights.scalar = load_vector(checkpoint, base + "layer_scalar", 1).front();
    layers_.push_back(weights);
  }
  final_norm_ = place(load_vector(checkpoint, facts.prefix + "norm.weight", facts.model.hidden));
}

void Gemma4Model::load_linears(const Checkpoint& checkpoint, WeightStore& store, const QuantizeWeight& quantize,
                               const std::function<void(std::size_t, std::size_t)>& progress) {
  const CheckpointFacts& facts = plan_.facts();
  const LoadWeight load = [&](const LinearSpec::Part& part, std::int64_t in_features) {
    const std::string name = full_name(facts, part.name);
    LinearWeight weight = load_linear(checkpoint, facts.quantization, name, part.out_features, in_features);
    if (stored_format(facts, name, in_features) == part.format) return weight;
    return quantize(weight, part.format);
  };
  std::size_t done = 0;
  for (LinearGroup* group : plan_.linears()) {
    for (LinearModule& module : group->modules()) module.load(load, store);
    if (++done % kModulesBetweenReleases == 0) checkpoint.release_pages();
    if (progress) progress(done, plan_.linears().size());
  }
  checkpoint.release_pages();
}

void Gemma4Model::forward(const StepInput& input) {
  const ModelConfig& model = plan_.facts().model;
  const ActivationLayout& at = plan_.activations();
  tokens_ = input.batch.token_count;
  backend_.embed(embedding_.view(), input.ids, tokens_, model.embedding_scale, activation(at.hidden));
  for (int kind = 0; kind < 2; ++kind) {
    const auto layer = std::find_if(model.layers.begin(), model.layers.end(),
                                    [&](const LayerConfig& l) { return l.sliding == (kind == 0); });
    if (layer == model.layers.end()) continue;
    backend_.rotary(input.positions, tokens_,
                    layers_[static_cast<std::size_t>(layer - model.layers.begin())].inverse_frequency,
                    {layer->rotary_live, activation(at.cosine[kind]), activation(at.sine[kind])});
  }
  backend_.rms_norm(activation(at.hidden), layers_.front().input_norm, model.epsilon, tokens_, model.hidden,
                    activation(at.normed));
  if (input.observer) input.observer(0, activation(at.hidden));
  for (std::size_t index = 0; index < layers_.size(); ++index) {
    try {
      attend(index, input);
      feed_forward(index, tokens_);
    } catch (Error& error) {
      error.add_context(
          fmt::format("in layer {} ({} attention)", index, model.layers[index].sliding ? "sliding" : "global"));
      throw;
    }
    if (input.observer) input.observer(static_cast<std::int32_t>(index) + 1, activation(at.hidden));
  }
}

void Gemma4Model::attend(std::size_t index, const StepInput& input) {
  const ModelConfig& model = plan_.facts().model;
  const LayerConfig& layer = model.layers[index];
  const LayerWeights& weights = layers_[index];
  const ActivationLayout& at = plan_.activations();
  LayerPlan& plan = plan_.layers()[index];
  const int kind = layer.sliding ? 0 : 1;
  plan.qkv.run(backend_, tokens_, activation(at.normed), activation(at.wide), workspace_.memory());

  const abi::KvView& kv = plan_.kv().view(static_cast<std::int32_t>(index));
  AttentionInput prepare;
  prepare.projections = activation(at.wide);
  prepare.stride = (model.query_heads + (layer.values_from_keys ? 1 : 2) * layer.kv_heads) * layer.head_dim;
  prepare.query_heads = model.query_heads;
  prepare.kv_heads = layer.kv_heads;
  prepare.head_dim = layer.head_dim;
  prepare.values_from_keys = layer.values_from_keys;
  prepare.query_norm = weights.query_norm;
  prepare.key_norm = weights.key_norm;
  prepare.epsilon = model.epsilon;
  prepare.rotary = {layer.rotary_live, activation(at.cosine[kind]), activation(at.sine[kind])};
  prepare.positions = input.positions;
  prepare.sequence = input.sequence;
  prepare.tokens = tokens_;
  prepare.kv = &kv;
  prepare.queries = activation(at.queries);
  backend_.prepare_attention(prepare);

  plan.attention->run(backend_, static_cast<std::int32_t>(index), input.batch, kv, activation(at.queries),
                      activation(at.inner), workspace_.memory());
  plan.output.run(backend_, tokens_, activation(at.inner), activation(at.update), workspace_.memory());
  backend_.residual_norm({activation(at.hidden), activation(at.update), weights.post_attention_norm, 1.0f,
                          weights.pre_feed_forward_norm, activation(at.normed), tokens_, model.hidden, model.epsilon});
}

void Gemma4Model::feed_forward(std::size_t index, std::int64_t tokens) {
  const ModelConfig& model = plan_.facts().model;
  const LayerWeights& weights = layers_[index];
  const ActivationLayout& at = plan_.activations();
  LayerPlan& plan = plan_.layers()[index];
  plan.gate_up.run(backend_, tokens, activation(at.normed), activation(at.wide), workspace_.memory());
  backend_.gelu_gate(activation(at.wide), tokens, model.feed_forward, activation(at.inner));
  plan.down.run(backend_, tokens, activation(at.inner), activation(at.update), workspace_.memory());
  // The norm of the next layer rides along; the last layer's rows are normalised when their logits are asked for.
  const float* next = index + 1 < layers_.size() ? layers_[index + 1].input_norm : nullptr;
  backend_.residual_norm({activation(at.hidden), activation(at.update), weights.post_feed_forward_norm, weights.scalar,
                          next, activation(at.normed), tokens, model.hidden, model.epsilon});
}

const float* Gemma4Model::logits(std::span<const std::int32_t> rows) {
  const ModelConfig& model = plan_.facts().model;
  const ActivationLayout& at = plan_.activations();
  const auto count = static_cast<std::int64_t>(rows.size());
  if (count > plan_.logit_rows())
    throw_error(ErrorKind::run, "logits of {} rows asked for; at most {} at once", count, plan_.logit_rows());
  backend_.gather_rows(activation(at.hidden), rows.data(), count, model.hidden, activation(at.rows));
  backend_.rms_norm(activation(at.rows), final_norm_, model.epsilon, count, model.hidden, activation(at.rows));
  plan_.head().run(backend_, count, activation(at.rows), activation(at.logits), workspace_.memory());
  if (model.soft_cap > 0) backend_.soft_cap(activation(at.logits), count * model.vocabulary, model.soft_cap);
  return activation(at.logits);
}

std::vector<PluginUse> Gemma4Model::plugin_use() const {
  std::vector<PluginUse> uses;
  const auto add = [&](const LoadedPlugin& plugin, const std::string& options, const CallCounter& counter,
                       std::string place) {
    const abi::PluginDescriptor& descriptor = *plugin.descriptor;
    uses.push_back({to_string(descriptor.kind), descriptor.name, descriptor.version, plugin.file.string(), options,
                    std::move(place), plugin.file_hash, counter.calls, counter.nanoseconds});
  };
  for (const auto& instance : plan_.assembler().instances())
    add(instance->plugin.plugin(), instance->options, instance->counter, "linear");
  for (const auto& module : plan_.attention()) {
    const AttentionInstance& instance = module->instance();
    add(instance.plugin.plugin(), instance.options, instance.counter, "attention." + module->group().name);
  }
  for (const KvGroup& group : plan_.kv().groups()) {
    add(group.cache.plugin(), group.options, group.counter, "kv_cache." + group.spec.name);
  }
  return uses;
}

std::uint64_t Gemma4Model::unpacked_weight_bytes() const {
  std::uint64_t bytes = embedding_.owned_bytes();
  for (const LinearGroup* group : plan_.linears()) {
    for (const LinearModule& module : group->modules()) bytes += module.owned_bytes();
  }
  return bytes;
}

std::int64_t Gemma4Model::kernel_nanoseconds() const {
  std::int64_t sum = 0;
  for (const auto& instance : plan_.assembler().instances()) sum += instance->counter.nanoseconds;
  for (const auto& module : plan_.attention()) sum += module->instance().counter.nanoseconds;
  return sum;
}

}  // namespace facet::gemma4
