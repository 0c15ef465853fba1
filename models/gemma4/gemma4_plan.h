// Gemma 4 laid over plugins: which linears, which KV groups, and every byte, before any weight is read.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "facet/checkpoint/quantization_config.h"
#include "facet/engine/attention_module.h"
#include "facet/engine/linear_module.h"
#include "facet/engine/step_arrays.h"
#include "gemma4/gemma4_config.h"

namespace facet::gemma4 {

// Rows of logits in one block: enough for every decoding sequence of a usual batch, and 64 rows of a 262,144-entry
// vocabulary are 64 MiB.
inline constexpr std::int64_t kLogitRows = 64;

struct LayerPlan {
  LinearGroup qkv;  // q|k|v, or q|k where values come from keys
  LinearGroup output;
  LinearGroup gate_up;
  LinearGroup down;
  AttentionModule* attention;
};

// Offsets of the step's buffers in one allocation of `bytes`.
struct ActivationLayout {
  std::uint64_t hidden[2] = {};  // [tokens, hidden] f32; each update goes from one to the other
  std::uint64_t normed = 0;      // [tokens, hidden] activations, as all below unless said otherwise
  std::uint64_t update = 0;      // [tokens, hidden]
  std::uint64_t wide = 0;        // [tokens, max(q|k|v, gate|up)]
  std::uint64_t inner = 0;       // [tokens, max(query heads * head_dim, feed_forward)]
  std::uint64_t queries = 0;     // [tokens, query heads * head_dim]
  std::uint64_t cosine[2] = {};  // [tokens, live] f32, sliding and global
  std::uint64_t sine[2] = {};
  std::uint64_t rows = 0;       // [logit rows, hidden] f32
  std::uint64_t row_index = 0;  // [logit rows] i32: which rows of hidden
  std::uint64_t logits = 0;     // [logit rows, vocabulary] f32
  std::uint64_t best = 0;       // [logit rows] i32
  std::uint64_t sampling = 0;   // [logit rows] RowSampling
  std::uint64_t step = 0;       // StepArrays
  std::uint64_t bytes = 0;
};

// What a checkpoint says about itself without its tensors being read.
struct CheckpointFacts {
  ModelConfig model;
  QuantizationConfig quantization;
  std::string prefix;     // "model." or "model.language_model."
  bool own_head = false;  // lm_head is a tensor of its own and not an identical copy of the embedding
};

CheckpointFacts read_facts(const Checkpoint& checkpoint);

// Full tensor name of a module of the plan.
std::string full_name(const CheckpointFacts& facts, const std::string& module);
// Format in which `module` (full name) is stored; in_features decides the group of one scale a row.
LinearFormat stored_format(const CheckpointFacts& facts, const std::string& full_module, std::int64_t in_features);

class ModelPlan {
 public:
  // Asks every plugin; throws Error(config | plugin) with all reasons.
  ModelPlan(const Config& config, CheckpointFacts facts, PluginRegistry& registry, const DeviceProfile& device);

  const CheckpointFacts& facts() const { return facts_; }
  const DeviceProfile& device() const { return device_; }
  const std::vector<LinearGroup*>& linears() const { return linears_; }
  // What was asked for each of linears().
  const std::vector<LinearSpec>& linear_specs() const { return specs_; }
  std::vector<LayerPlan>& layers() { return layers_; }
  const std::vector<LayerPlan>& layers() const { return layers_; }
  LinearGroup& head() { return *head_; }
  const LinearGroup& head() const { return *head_; }
  const std::vector<std::unique_ptr<AttentionModule>>& attention() const { return attention_; }
  const LinearAssembler& assembler() const { return assembler_; }
  KvManager& kv() { return *kv_; }
  const KvManager& kv() const { return *kv_; }
  const ActivationLayout& activations() const { return activation_layout_; }
  std::uint64_t workspace_bytes() const { return workspace_bytes_; }
  std::uint64_t norm_bytes() const;
  std::int64_t max_step_tokens() const { return max_step_tokens_; }
  std::int64_t logit_rows() const { return logit_rows_; }
  std::int64_t max_sequences() const { return kv_->max_sequences(); }
  std::int64_t max_context() const { return max_context_; }
  StepArrays& step_arrays() { return *step_arrays_; }
  MemoryPlan memory() const;

 private:
  void plan_attention(const Config& config, PluginRegistry& registry);
  void plan_layers();
  void plan_head(const std::string& format);
  LinearGroup plan_linear(LinearSpec spec);
  void lay_out_activations();
  void count_in_place(const LinearModule& module, MemoryPlan& plan) const;
  void count_embedding(MemoryPlan& plan) const;
  LinearSpec spec(std::int32_t layer, std::vector<std::string> names, std::vector<std::int64_t> out,
                  std::vector<abi::LinearRole> roles, abi::LinearRole stacked, std::int64_t in) const;

  CheckpointFacts facts_;
  const DeviceProfile& device_;
  LinearAssembler assembler_;
  std::int64_t max_step_tokens_;
  std::int64_t logit_rows_;
  std::int64_t max_context_;
  std::vector<std::unique_ptr<AttentionModule>> attention_;
  std::unique_ptr<KvManager> kv_;
  std::unique_ptr<StepArrays> step_arrays_;
  std::vector<LayerPlan> layers_;
  std::unique_ptr<LinearGroup> head_;
  std::vector<LinearGroup*> linears_;
  std::vector<LinearSpec> specs_;
  ActivationLayout activation_layout_;
  std::uint64_t workspace_bytes_ = 0;
};

}  // namespace facet::gemma4
