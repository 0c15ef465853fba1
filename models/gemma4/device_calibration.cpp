#include "gemma4/device_calibration.h"

#include <algorithm>

namespace facet::gemma4 {
namespace {

constexpr std::uint64_t kBf16 = 2;

std::uint64_t area(std::int64_t rows, std::int64_t columns, std::uint64_t element) {
  return static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(columns) * element;
}

std::int64_t query_width(const ModelConfig& model, const LayerConfig& layer) {
  return model.query_heads * layer.head_dim;
}

// Widths of a row over all layers.
struct Widest {
  explicit Widest(const ModelConfig& model) : wide(2 * model.feed_forward) {
    for (const LayerConfig& layer : model.layers) {
      const std::int64_t keys = layer.kv_heads * layer.head_dim;
      queries = std::max(queries, query_width(model, layer));
      wide = std::max(wide, query_width(model, layer) + (layer.values_from_keys ? 1 : 2) * keys);
      head_dim = std::max(head_dim, layer.head_dim);
      live = std::max(live, layer.rotary_live);
    }
  }
  std::int64_t queries = 0, wide, head_dim = 0, live = 0;
};

// The plugins that serve dense and quantized layers for many rows.
Config device_plugins() {
  const auto choice = [](const char* key, const char* plugin) {
    PluginChoice made;
    made.plugin = plugin;
    made.key_path = key;
    return made;
  };
  Config config;
  config.file = "calibration on a GPU";
  LinearRule rule;
  rule.choice = choice("linear", "dense_cublas");
  rule.choice.fallback = {"dequant_cublas"};
  rule.choice.fallback_path = "linear.fallback";
  config.linear = {rule};
  config.engine.kv_form = "full";  // rows live for one batch only: exact keys cost nothing
  config.attention_sliding = config.attention_global = choice("attention", "flash_cuda");
  config.kv_sliding = config.kv_global = choice("kv_cache", "static");
  return config;
}

std::vector<abi::LinearRole> roles(LayerStage stage) {
  using Role = abi::LinearRole;
  switch (stage) {
    case LayerStage::attention_input:
      return {Role::q, Role::k, Role::v};
    case LayerStage::attention_output:
      return {Role::o};
    case LayerStage::feed_forward_input:
      return {Role::gate, Role::up};
    case LayerStage::feed_forward_output:
      return {Role::down};
  }
  return {};
}

abi::LinearRole stacked_role(LayerStage stage, std::size_t parts) {
  if (stage == LayerStage::feed_forward_input) return abi::LinearRole::gate_up;
  return parts == 3 ? abi::LinearRole::qkv : abi::LinearRole::qk;
}

}  // namespace

// What one batch of one model needs for a moment.
struct DeviceCalibration::Scratch {
  struct Bytes {
    std::uint64_t wide, queries, update, angles, step, workspace;
    std::uint64_t sum() const {
      return wide + queries + update + 2 * angles + step + Workspace::allocated_bytes(workspace);
    }
  };
  static Bytes bytes(const ModelConfig& model, std::int64_t rows, std::uint64_t step, std::uint64_t workspace) {
    const Widest widest(model);
    return {area(rows, widest.wide, kBf16),
            area(rows, widest.queries, kBf16),
            area(rows, model.hidden, kBf16),
            area(rows, widest.live, sizeof(float)),
            step,
            workspace};
  }
  Scratch(Backend& backend, const Bytes& bytes) {
    const auto make = [&](std::uint64_t count) { return backend.allocate(count, 256, kActivationsTag); };
    wide = make(bytes.wide);
    queries = make(bytes.queries);
    update = make(bytes.update);
    cosine = make(bytes.angles);
    sine = make(bytes.angles);
    step = make(bytes.step);
    workspace = Workspace(backend, bytes.workspace);
  }
  DeviceBuffer wide, queries, update, cosine, sine, step;
  Workspace workspace;
};

DeviceCalibration::DeviceCalibration(const CheckpointFacts& facts, const Checkpoint& checkpoint, Backend& backend,
                                     PluginRegistry& registry, const std::vector<std::vector<std::int32_t>>& sequences,
                                     std::int64_t batch_tokens, std::vector<FormatOf> models)
    : facts_(facts),
      checkpoint_(checkpoint),
      backend_(backend),
      models_(std::move(models)),
      config_(device_plugins()),
      assembler_(config_, registry, backend.device(), backend.activation_type()) {
  check_sequences(facts.model, sequences);
  batches_ = make_batches(sequences, batch_tokens);
  for (const CalibrationBatch& batch : batches_) widest_ = std::max(widest_, batch.tokens());
  kept_width_ = std::max(Widest(facts.model).queries, facts.model.feed_forward);
  attention_ = std::make_unique<CalibrationAttention>(facts.model, config_, registry, backend, batches_, widest_);
  plan_linears();
}

DeviceCalibration::~DeviceCalibration() = default;

LinearGroup DeviceCalibration::plan(std::size_t model, std::size_t layer, LayerStage stage) {
  const StageModules modules = stage_modules(facts_, layer, stage);
  const std::vector<abi::LinearRole> role = roles(stage);
  LinearSpec spec;
  for (std::size_t i = 0; i < modules.modules.size(); ++i) {
    const StageModule& module = modules.modules[i];
    spec.parts.push_back({module.name, module.out_features, role[i], models_[model](module.name, modules.in_features)});
  }
  spec.stacked_role = stacked_role(stage, spec.parts.size());
  spec.in_features = modules.in_features;
  spec.layer = static_cast<std::int32_t>(layer);
  spec.max_rows = widest_;
  return assembler_.plan(spec);
}

// Asks for every layer, so that no run ends in the middle because a plugin refuses one.
void DeviceCalibration::plan_linears() {
  workspace_bytes_ = attention_->workspace_bytes();
  for (std::size_t model = 0; model < models_.size(); ++model) {
    for (std::size_t layer = 0; layer < facts_.model.layers.size(); ++layer) {
      for (const LayerStage stage : kLayerStages) {
        std::uint64_t packed = 0;
        const LinearGroup group = plan(model, layer, stage);
        for (const LinearModule& module : group.modules()) {
          workspace_bytes_ = std::max(workspace_bytes_, module.workspace_bytes());
          for (const WeightStore::Key& key : module.packed_keys()) packed += key.bytes;
        }
        packed_bytes_ = std::max(packed_bytes_, packed);
      }
    }
  }
}

std::uint64_t DeviceCalibration::state_bytes() const {
  const ModelConfig& model = facts_.model;
  std::uint64_t each = area(widest_, model.hidden, sizeof(float)) + area(widest_, model.hidden, kBf16);
  for (const CalibrationBatch& batch : batches_)
    each += area(widest_, model.hidden, sizeof(float)) + area(batch.tokens(), kept_width_, kBf16);
  const Widest widest(model);
  const std::uint64_t norms = area(5, model.hidden, sizeof(float)) + area(3, widest.head_dim, sizeof(float));
  return models_.size() * each + norms + attention_->pool_bytes() +
         Scratch::bytes(model, widest_, attention_->step_bytes(), workspace_bytes_).sum();
}

std::uint64_t DeviceCalibration::table_bytes(const abi::WeightView& table) const {
  const std::uint64_t groups =
      table.group_size == 0 ? 0
                            : static_cast<std::uint64_t>((table.in_features + table.group_size - 1) / table.group_size);
  const auto rows = static_cast<std::uint64_t>(table.out_features);
  return backend_.placed_bytes(rows * static_cast<std::uint64_t>(table.row_bytes), rows * groups * 5);
}

void DeviceCalibration::allocate() {
  const ModelConfig& model = facts_.model;
  const auto make = [&](std::uint64_t bytes) { return backend_.allocate(bytes, 256, kActivationsTag); };
  for (State& state : states_ = std::vector<State>(models_.size())) {
    for (const CalibrationBatch& batch : batches_) {
      state.hidden.push_back(make(area(widest_, model.hidden, sizeof(float))));
      state.kept.push_back(make(area(batch.tokens(), kept_width_, kBf16)));
    }
    state.spare = make(area(widest_, model.hidden, sizeof(float)));
    state.normed = make(area(widest_, model.hidden, kBf16));
  }
  scratch_ =
      std::make_unique<Scratch>(backend_, Scratch::bytes(model, widest_, attention_->step_bytes(), workspace_bytes_));
  attention_->allocate(backend_);
  const auto vector = [&](std::int64_t count) { return make(area(count, 1, sizeof(float))); };
  const Widest widest(model);
  for (DeviceBuffer* buffer :
       {&norms_.input, &norms_.post_attention, &norms_.pre_feed_forward, &norms_.post_feed_forward, &norms_.final})
    *buffer = vector(model.hidden);
  for (DeviceBuffer* buffer : {&norms_.query, &norms_.key, &norms_.inverse_frequency})
    *buffer = vector(widest.head_dim);
  upload_norm(norms_.final, facts_.prefix + "norm.weight", model.hidden);
}

void DeviceCalibration::upload_norm(DeviceBuffer& buffer, const std::string& name, std::int64_t count) {
  const std::vector<float> values = load_vector(checkpoint_, name, count);
  backend_.upload(buffer.data(), values.data(), values.size() * sizeof(float));
}

void DeviceCalibration::embed(std::span<const abi::WeightView> tables) {
  allocate();
  PlacedWeight placed;
  const void* source = nullptr;
  for (std::size_t model = 0; model < models_.size(); ++model) {
    if (tables[model].values != source) {
      wait();
      placed = {};  // before the next one is made
      placed = backend_.place(tables[model], kWeightsTag);
      source = tables[model].values;
    }
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      const CalibrationBatch& batch = batches_[i];
      auto* ids = scratch_->step.as<std::int32_t>();
      backend_.upload(ids, batch.ids.data(), batch.ids.size() * sizeof(std::int32_t));
      backend_.embed(placed.view, ids, nullptr, batch.tokens(), facts_.model.embedding_scale,
                     states_[model].hidden[i].as<float>());
    }
  }
  wait();
}

void DeviceCalibration::begin_layer(std::size_t layer) {
  layer_ = layer;
  const std::string base = fmt::format("{}layers.{}.", facts_.prefix, layer);
  const std::int64_t hidden = facts_.model.hidden;
  upload_norm(norms_.input, base + "input_layernorm.weight", hidden);
  upload_norm(norms_.query, base + "self_attn.q_norm.weight", config().head_dim);
  upload_norm(norms_.key, base + "self_attn.k_norm.weight", config().head_dim);
  upload_norm(norms_.post_attention, base + "post_attention_layernorm.weight", hidden);
  upload_norm(norms_.pre_feed_forward, base + "pre_feedforward_layernorm.weight", hidden);
  upload_norm(norms_.post_feed_forward, base + "post_feedforward_layernorm.weight", hidden);
  norms_.scalar = load_vector(checkpoint_, base + "layer_scalar", 1).front();
  const std::vector<float> frequencies = inverse_frequencies(config());
  backend_.upload(norms_.inverse_frequency.data(), frequencies.data(), frequencies.size() * sizeof(float));
}

const void* DeviceCalibration::norm(std::size_t model, std::size_t batch, const DeviceBuffer& weight) {
  State& state = states_[model];
  backend_.rms_norm(state.hidden[batch].as<float>(), weight.as<float>(), facts_.model.epsilon, batches_[batch].tokens(),
                    facts_.model.hidden, state.normed.data());
  return state.normed.data();
}

const void* DeviceCalibration::input(std::size_t model, LayerStage stage, std::size_t batch) {
  if (stage == LayerStage::attention_input) return norm(model, batch, norms_.input);
  if (stage == LayerStage::feed_forward_input) return norm(model, batch, norms_.pre_feed_forward);
  return states_[model].kept[batch].data();
}

const void* DeviceCalibration::head_input(std::size_t model, std::size_t batch) {
  return norm(model, batch, norms_.final);
}

void DeviceCalibration::advance(std::size_t model, LayerStage stage, std::span<const LinearWeight> weights) {
  WeightStore store(backend_);
  LinearGroup group = plan(model, layer_, stage);
  const StageModules modules = stage_modules(facts_, layer_, stage);
  const LoadWeight load = [&](const LinearSpec::Part& part, std::int64_t) {
    const auto named = [&](const StageModule& module) { return module.name == part.name; };
    const auto found = std::find_if(modules.modules.begin(), modules.modules.end(), named);
    return weights[static_cast<std::size_t>(found - modules.modules.begin())];
  };
  for (LinearModule& module : group.modules()) module.load(load, store);
  for (std::size_t batch = 0; batch < batches_.size(); ++batch) {
    const std::int64_t tokens = batches_[batch].tokens();
    switch (stage) {
      case LayerStage::attention_input:
        attend(model, batch, group);
        break;
      case LayerStage::attention_output:
        add_projection(model, batch, group, norms_.post_attention, 1.0f);
        break;
      case LayerStage::feed_forward_input:
        group.run(backend_, tokens, input(model, stage, batch), scratch_->wide.data(), scratch_->workspace);
        backend_.gelu_gate(scratch_->wide.data(), tokens, facts_.model.feed_forward, states_[model].kept[batch].data());
        break;
      case LayerStage::feed_forward_output:
        add_projection(model, batch, group, norms_.post_feed_forward, norms_.scalar);
        break;
    }
  }
  wait();
}

void DeviceCalibration::attend(std::size_t model, std::size_t batch, LinearGroup& group) {
  const CalibrationBatch& rows = batches_[batch];
  const LayerConfig& layer = config();
  attention_->begin(backend_, rows, scratch_->step.data());
  const StepArrays& step = attention_->step();
  const abi::KvView& kv = attention_->view(layer_);
  group.run(backend_, rows.tokens(), norm(model, batch, norms_.input), scratch_->wide.data(), scratch_->workspace);
  AttentionInput prepare;
  prepare.projections = scratch_->wide.data();
  prepare.query_heads = facts_.model.query_heads;
  prepare.kv_heads = layer.kv_heads;
  prepare.head_dim = layer.head_dim;
  prepare.values_from_keys = layer.values_from_keys;
  prepare.stride = (prepare.query_heads + (layer.values_from_keys ? 1 : 2) * layer.kv_heads) * layer.head_dim;
  prepare.query_norm = norms_.query.as<float>();
  prepare.key_norm = norms_.key.as<float>();
  prepare.epsilon = facts_.model.epsilon;
  prepare.rotary = {layer.rotary_live, scratch_->cosine.as<float>(), scratch_->sine.as<float>()};
  prepare.positions = step.positions;
  prepare.sequence = step.sequence;
  prepare.tokens = rows.tokens();
  prepare.kv = &kv;
  prepare.queries = scratch_->queries.data();
  backend_.rotary(step.positions, rows.tokens(), norms_.inverse_frequency.as<float>(), prepare.rotary);
  attention_->module(layer_).run(backend_, static_cast<std::int32_t>(layer_), step.batch, prepare,
                                 states_[model].kept[batch].data(), scratch_->workspace.memory());
  attention_->end(rows);
}

void DeviceCalibration::add_projection(std::size_t model, std::size_t batch, LinearGroup& group,
                                       const DeviceBuffer& post_norm, float scale) {
  State& state = states_[model];
  const std::int64_t tokens = batches_[batch].tokens();
  group.run(backend_, tokens, state.kept[batch].data(), scratch_->update.data(), scratch_->workspace);
  ResidualInput residual;
  residual.hidden = state.hidden[batch].as<float>();
  residual.update = scratch_->update.data();
  residual.post_norm = post_norm.as<float>();
  residual.scale = scale;
  residual.hidden_out = state.spare.as<float>();
  residual.tokens = tokens;
  residual.width = facts_.model.hidden;
  residual.epsilon = facts_.model.epsilon;
  backend_.residual_norm(residual);
  std::swap(state.hidden[batch], state.spare);
}

void DeviceCalibration::wait() {
  if (scratch_ != nullptr) backend_.read_back(scratch_->step.data(), sizeof(std::int32_t));
}

}  // namespace facet::gemma4
