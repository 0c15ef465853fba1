// Attention plugins bound to layers, and the negotiation of KV layouts between them and the cache policies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "facet/engine/kv_manager.h"

namespace facet {

struct AttentionInstance {
  PluginInstance<abi::Attention> plugin;
  std::string options;
  CallCounter counter;
};

struct AttentionShape {
  std::int64_t query_heads = 0;
  float scale = 1.0f;
  abi::DType activations = abi::DType::f32;  // of queries and output
};

// All layers of one KV group: they share shape and layout, so they share one plan.
class AttentionModule {
 public:
  AttentionModule(KvGroupSpec group, const abi::AttentionProblem& problem, std::shared_ptr<AttentionInstance> instance,
                  const abi::AttentionPlan& plan, std::vector<Refusal> refused, std::vector<Refusal> form_refused = {});

  const KvGroupSpec& group() const { return group_; }
  // As the kernel took it, layout included.
  const abi::AttentionProblem& problem() const { return problem_; }
  AttentionInstance& instance() const { return *instance_; }
  const std::vector<Refusal>& refused() const { return refused_; }
  // Where the shared form of the cache was possible: who did not take it, the configuration included.
  const std::vector<Refusal>& form_refused() const { return form_refused_; }
  // False: the plugin cannot plan without its device, which is not here (PluginRegistry::create). Workspace is 0 then.
  bool planned() const { return static_cast<bool>(instance_->plugin); }
  std::uint64_t workspace_bytes() const { return plan_.workspace_bytes; }
  // From the raw projections to output [token_count, query_heads, head_dim], dense. Queries and KV rows are made by the
  // kernel where it takes that into a step of one token a sequence, else by the backend before it; input.queries is
  // scratch.
  void run(Backend& backend, std::int32_t layer, const abi::BatchView& batch, const AttentionInput& input, void* output,
           abi::Memory workspace);

 private:
  KvGroupSpec group_;
  abi::AttentionProblem problem_;
  std::shared_ptr<AttentionInstance> instance_;
  abi::AttentionPlan plan_;
  std::shared_ptr<void> plan_owner_;
  std::vector<Refusal> refused_, form_refused_;
};

// A group with its cache policy and its attention.
struct AttentionAssembly {
  KvGroup cache;
  std::unique_ptr<AttentionModule> attention;
};

// Chooses cache policy and attention plugin of one group by the config, in the order plugin, fallback..., and takes the
// first layout of the attention kernel's list that the cache can store. Where the group can have the shared form of the
// cache, engine.kv_form decides whether a plugin is asked for it, for whole keys, or for one after the other. Throws
// Error(plugin) with every reason, or with both lists when none is common.
AttentionAssembly assemble_attention(const Config& config, PluginRegistry& registry, abi::Device device,
                                     const KvGroupSpec& group, AttentionShape shape, const KvLimits& limits,
                                     std::int64_t max_step_tokens);

}  // namespace facet
