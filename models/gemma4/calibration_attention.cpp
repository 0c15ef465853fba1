#include "gemma4/calibration_attention.h"

#include <algorithm>
#include <numeric>

#include "gemma4/kv_groups.h"

namespace facet::gemma4 {

CalibrationAttention::CalibrationAttention(const ModelConfig& model, const Config& config, PluginRegistry& registry,
                                           const Backend& backend, const std::vector<CalibrationBatch>& batches,
                                           std::int64_t widest) {
  KvLimits limits;
  for (const CalibrationBatch& batch : batches) {
    limits.max_sequences = std::max(limits.max_sequences, static_cast<std::int64_t>(batch.sequences()));
    limits.max_context = std::max(limits.max_context, batch.longest);
  }
  limits.max_chunk = limits.max_context;
  limits.max_step_tokens = widest;
  std::vector<KvGroupSpec> specs;
  for (const LayerConfig& layer : model.layers) {
    const std::size_t kind = kv_group_of(specs, layer);
    specs[kind].layers = {static_cast<std::int32_t>(kind)};
    kind_of_layer_.push_back(kind);
  }
  std::vector<KvGroup> groups;
  for (const KvGroupSpec& spec : specs) {
    AttentionAssembly made = assemble_attention(config, registry, backend.device(), spec,
                                                {model.query_heads, 1.0f, backend.activation_type()}, limits, widest);
    pool_bytes_ += made.cache.plan.pool_bytes;
    workspace_bytes_ = std::max(workspace_bytes_, made.attention->workspace_bytes());
    groups.push_back(std::move(made.cache));
    kinds_.push_back(std::move(made.attention));
  }
  kv_ = std::make_unique<KvManager>(std::move(groups), limits.max_sequences);
  step_ = std::make_unique<StepArrays>(*kv_, widest, limits.max_sequences, limits.max_context);
}

void CalibrationAttention::begin(Backend& backend, const CalibrationBatch& batch, void* memory) {
  std::vector<std::uint64_t> open(batch.sequences());
  std::iota(open.begin(), open.end(), std::uint64_t{0});
  for (const std::uint64_t sequence : open) {
    kv_->open(sequence, {}, 0, 0);
    if (kv_->reserve(sequence, batch.token_begin[sequence + 1] - batch.token_begin[sequence]) != KvResult::ok)
      throw_error(ErrorKind::run, "no room for a calibration sequence: {}", kv_->last_refusal());
  }
  kv_->begin_step(open);
  const std::vector<std::int32_t> zeros(open.size(), 0);
  StepInput input;
  input.ids = batch.ids.data();
  input.positions = batch.positions.data();
  input.sequence = batch.sequence.data();
  input.batch = {sizeof(abi::BatchView), static_cast<std::int32_t>(open.size()),
                 batch.tokens(),         batch.token_begin.data(),
                 zeros.data(),           batch.longest,
                 batch.longest};
  step_->upload(backend, memory, input, *kv_, batch.tokens(), static_cast<std::int64_t>(open.size()));
}

void CalibrationAttention::end(const CalibrationBatch& batch) {
  for (std::uint64_t sequence = 0; sequence < batch.sequences(); ++sequence) {
    const std::int32_t* first = batch.ids.data() + batch.token_begin[sequence];
    kv_->commit(sequence, {first, batch.ids.data() + batch.token_begin[sequence + 1]});
    kv_->close(sequence);
  }
}

}  // namespace facet::gemma4
