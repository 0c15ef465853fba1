#include "gemma4/gemma4_model.h"

#include <algorithm>
#include <bit>

#include "gemma4/step_parts.h"

namespace facet::gemma4 {
namespace {

// Pages of the file are given back after this many modules: packed copies replace them.
constexpr std::size_t kModulesBetweenReleases = 8;

// Contexts that recorded steps are made for: 1,024, 1,536, 2,048, 3,072 tokens and so on, so that they stay few and the
// launches for one serve a context a third shorter well.
std::int64_t recorded_context(std::int64_t tokens, std::int64_t longest) {
  std::int64_t context = 1024;
  while (context < tokens)
    context = std::has_single_bit(static_cast<std::uint64_t>(context)) ? context / 2 * 3 : context / 3 * 4;
  return std::min(context, longest);
}

}  // namespace

LoadWeight weight_loader(const CheckpointFacts& facts, const WeightSource& source, const QuantizeWeight& quantize) {
  return [&](const LinearSpec::Part& part, std::int64_t in_features) {
    const std::string name = full_name(facts, part.name);
    LinearWeight weight = source.linear(name, part.out_features, in_features);
    if (stored_format(facts, name, in_features) == part.format) return weight;
    return quantize(weight, part.format);
  };
}

Gemma4Model::Gemma4Model(ModelPlan& plan, const WeightSource& source, Backend& backend, WeightStore& store,
                         const QuantizeWeight& quantize, const std::function<void(std::size_t, std::size_t)>& progress)
    : plan_(plan),
      backend_(backend),
      embedding_(source.linear(plan.facts().prefix + "embed_tokens", plan.facts().model.vocabulary,
                               plan.facts().model.hidden)),
      table_(backend.place(embedding_.view(), kWeightsTag)),
      vectors_(backend.allocate(plan.norm_bytes(), 64, kWeightsTag)),
      activations_(backend.allocate(plan.activations().bytes, 64, kActivationsTag)),
      workspace_(backend, plan.workspace_bytes()) {
  load_vectors(source);
  load_linears(source, store, quantize, progress);
  plan.kv().allocate(backend);
}

void Gemma4Model::load_vectors(const WeightSource& source) {
  const CheckpointFacts& facts = plan_.facts();
  Arena arena;
  const auto place = [&](const std::vector<float>& values) {
    float* target = reinterpret_cast<float*>(vectors_.as<char>() + arena.add(values.size() * sizeof(float)));
    backend_.upload(target, values.data(), values.size() * sizeof(float));
    return target;
  };
  for (std::size_t i = 0; i < facts.model.layers.size(); ++i) {
    const LayerConfig& layer = facts.model.layers[i];
    const std::string base = fmt::format("{}layers.{}.", facts.prefix, i);
    const auto vector = [&](const char* name, std::int64_t count) { return place(source.vector(base + name, count)); };
    LayerWeights weights{};
    weights.input_norm = vector("input_layernorm.weight", facts.model.hidden);
    weights.post_attention_norm = vector("post_attention_layernorm.weight", facts.model.hidden);
    weights.pre_feed_forward_norm = vector("pre_feedforward_layernorm.weight", facts.model.hidden);
    weights.post_feed_forward_norm = vector("post_feedforward_layernorm.weight", facts.model.hidden);
    weights.query_norm = vector("self_attn.q_norm.weight", layer.head_dim);
    weights.key_norm = vector("self_attn.k_norm.weight", layer.head_dim);
    weights.inverse_frequency = place(inverse_frequencies(layer));
    weights.scalar = source.vector(base + "layer_scalar", 1).front();
    layers_.push_back(weights);
  }
  final_norm_ = place(source.vector(facts.prefix + "norm.weight", facts.model.hidden));
}

void Gemma4Model::load_linears(const WeightSource& source, WeightStore& store, const QuantizeWeight& quantize,
                               const std::function<void(std::size_t, std::size_t)>& progress) {
  const LoadWeight load = weight_loader(plan_.facts(), source, quantize);
  std::size_t done = 0;
  for (LinearGroup* group : plan_.linears()) {
    for (LinearModule& module : group->modules()) module.load(load, store);
    if (++done % kModulesBetweenReleases == 0) source.release_pages();
    if (progress) progress(done, plan_.linears().size());
  }
  source.release_pages();
}

void Gemma4Model::forward(const StepInput& input) {
  const std::int64_t used = input.batch.token_count;
  const bool decode =
      input.batch.max_new_tokens == 1 && used <= std::min(plan_.logit_rows(), plan_.max_sequences()) && !input.observer;
  tokens_ = decode ? backend_.recorded_rows(used, std::min(plan_.logit_rows(), plan_.max_sequences())) : used;
  StepArrays& step = plan_.step_arrays();
  step.upload(backend_, at(plan_.activations().step), input, plan_.kv(), tokens_,
              decode ? tokens_ : input.batch.sequence_count);
  has_logits_ = decode && input.all_logits;
  uncapped_rows_ = has_logits_ ? tokens_ : 0;
  if (!decode) {
    const auto launch = [&] {
      run_layers(input.observer);
      enter(StepPart::head);
      backend_.residual_norm(last_residual(nullptr));
    };
    if (input.observer) {
      launch();
    } else {
      backend_.run_step(launch);
    }
    show_hidden(input.observer, layers_.size());
    return;
  }
  // A recorded step serves a range of contexts; launches are chosen for the longest of them.
  step.batch.max_rows = recorded_context(step.batch.max_rows, plan_.kv().max_sequence_tokens());
  const std::vector<CallCounter*> all = counters();
  std::vector<std::int64_t> before;
  before.reserve(all.size());
  for (const CallCounter* counter : all) before.push_back(counter->calls);
  const ActivationLayout& layout = plan_.activations();
  const std::int64_t key = (step.batch.max_rows << 32) + 2 * tokens_ + (has_logits_ ? 1 : 0);
  const bool launched = backend_.run_recorded(this, key, [&] {
    run_layers({});
    enter(StepPart::head);
    if (!has_logits_) {
      backend_.residual_norm(last_residual(nullptr));
      return;
    }
    // Every token's logits are wanted: the last norms go with the head.
    plan_.head().run_normed(backend_, last_residual(final_norm_), at(layout.logits), workspace_);
    const ModelConfig& model = plan_.facts().model;
    backend_.argmax(at<float>(layout.logits), tokens_, model.vocabulary, model.soft_cap, at<std::int32_t>(layout.best));
  });
  std::vector<std::int64_t>& calls = recorded_calls_[key];
  if (launched) calls.clear();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (launched) {
      calls.push_back(all[i]->calls - before[i]);
    } else {
      all[i]->calls += calls[i];
    }
  }
}

void Gemma4Model::run_layers(const Observer& observer) {
  const ModelConfig& model = plan_.facts().model;
  const ActivationLayout& layout = plan_.activations();
  const StepArrays& step = plan_.step_arrays();
  current_ = 0;
  updated_ = false;
  enter(StepPart::inputs);
  // Ids below 0 stand for the best tokens of the step before.
  backend_.embed(table_.view, step.ids, at<std::int32_t>(layout.best), tokens_, model.embedding_scale, hidden());
  for (int kind = 0; kind < 2; ++kind) {
    const auto layer = std::find_if(model.layers.begin(), model.layers.end(),
                                    [&](const LayerConfig& l) { return l.sliding == (kind == 0); });
    if (layer == model.layers.end()) continue;
    backend_.rotary(step.positions, tokens_,
                    layers_[static_cast<std::size_t>(layer - model.layers.begin())].inverse_frequency,
                    {layer->rotary_live, at<float>(layout.cosine[kind]), at<float>(layout.sine[kind])});
  }
  for (std::size_t index = 0; index < layers_.size(); ++index) {
    try {
      attend(index);
      // The output of a layer is complete once the next one has added its update.
      show_hidden(observer, index);
      feed_forward(index);
    } catch (Error& error) {
      error.add_context(
          fmt::format("in layer {} ({} attention)", index, model.layers[index].sliding ? "sliding" : "global"));
      throw;
    }
  }
}

void Gemma4Model::enter(StepPart part) {
  backend_.enter_part(static_cast<std::int32_t>(part));
}

void Gemma4Model::show_hidden(const Observer& observer, std::size_t layer) {
  if (!observer) return;
  const auto bytes = static_cast<std::uint64_t>(tokens_ * plan_.facts().model.hidden) * sizeof(float);
  observer(static_cast<std::int32_t>(layer), static_cast<const float*>(backend_.read_back(hidden(), bytes)));
}

ResidualInput Gemma4Model::last_residual(const float* next_norm) {
  return residual(layers_.back().post_feed_forward_norm, layers_.back().scalar, next_norm);
}

ResidualInput Gemma4Model::residual(const float* post_norm, float scale, const float* next_norm) {
  const ModelConfig& model = plan_.facts().model;
  const ActivationLayout& layout = plan_.activations();
  ResidualInput input;
  input.hidden = hidden();
  if (updated_) {
    input.update = at(layout.update);
    input.post_norm = post_norm;
    input.scale = scale;
    current_ = 1 - current_;
    input.hidden_out = hidden();
  }
  input.next_norm = next_norm;
  input.normed = at(layout.normed);
  input.tokens = tokens_;
  input.width = model.hidden;
  input.epsilon = model.epsilon;
  updated_ = false;
  return input;
}

void Gemma4Model::attend(std::size_t index) {
  const ModelConfig& model = plan_.facts().model;
  const LayerConfig& layer = model.layers[index];
  const LayerWeights& weights = layers_[index];
  const ActivationLayout& layout = plan_.activations();
  const StepArrays& step = plan_.step_arrays();
  LayerPlan& plan = plan_.layers()[index];
  const int kind = layer.sliding ? 0 : 1;
  enter(layer.sliding ? StepPart::sliding_qkv : StepPart::global_qkv);
  // The update of the layer before, if there is one, is added on the way.
  const LayerWeights& before = layers_[index == 0 ? 0 : index - 1];
  plan.qkv.run_normed(backend_, residual(before.post_feed_forward_norm, before.scalar, weights.input_norm),
                      at(layout.wide), workspace_);

  enter(layer.sliding ? StepPart::sliding_attention : StepPart::global_attention);
  const abi::KvView& kv = plan_.kv().view(static_cast<std::int32_t>(index));
  AttentionInput prepare;
  prepare.projections = at(layout.wide);
  prepare.stride = (model.query_heads + (layer.values_from_keys ? 1 : 2) * layer.kv_heads) * layer.head_dim;
  prepare.query_heads = model.query_heads;
  prepare.kv_heads = layer.kv_heads;
  prepare.head_dim = layer.head_dim;
  prepare.values_from_keys = layer.values_from_keys;
  prepare.query_norm = weights.query_norm;
  prepare.key_norm = weights.key_norm;
  prepare.epsilon = model.epsilon;
  prepare.rotary = {layer.rotary_live, at<float>(layout.cosine[kind]), at<float>(layout.sine[kind])};
  prepare.positions = step.positions;
  prepare.sequence = step.sequence;
  prepare.tokens = tokens_;
  prepare.kv = &kv;
  prepare.queries = at(layout.queries);
  plan.attention->run(backend_, static_cast<std::int32_t>(index), step.batch, prepare, at(layout.inner),
                      workspace_.memory());
  enter(layer.sliding ? StepPart::sliding_output : StepPart::global_output);
  plan.output.run(backend_, tokens_, at(layout.inner), at(layout.update), workspace_);
  updated_ = true;
}

void Gemma4Model::feed_forward(std::size_t index) {
  const LayerWeights& weights = layers_[index];
  const ActivationLayout& layout = plan_.activations();
  LayerPlan& plan = plan_.layers()[index];
  enter(StepPart::gate_up);
  plan.gate_up.run_gated(backend_, residual(weights.post_attention_norm, 1.0f, weights.pre_feed_forward_norm),
                         at(layout.wide), at(layout.inner), workspace_);
  enter(StepPart::down);
  plan.down.run(backend_, tokens_, at(layout.inner), at(layout.update), workspace_);
  updated_ = true;
}

std::vector<CallCounter*> Gemma4Model::counters() const {
  std::vector<CallCounter*> all;
  for (const auto& instance : plan_.assembler().instances()) all.push_back(&instance->counter);
  for (const auto& module : plan_.attention()) all.push_back(&module->instance().counter);
  return all;
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
  if (backend_.device() != abi::Device::cpu) return 0;  // there a call only launches
  std::int64_t sum = 0;
  for (const auto& instance : plan_.assembler().instances()) sum += instance->counter.nanoseconds;
  for (const auto& module : plan_.attention()) sum += module->instance().counter.nanoseconds;
  return sum;
}

}  // namespace facet::gemma4
