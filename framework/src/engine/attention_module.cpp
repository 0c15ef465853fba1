#include "facet/engine/attention_module.h"

namespace facet {

AttentionModule::AttentionModule(KvGroupSpec group, const abi::AttentionProblem& problem,
                                 std::shared_ptr<AttentionInstance> instance, const abi::AttentionPlan& plan,
                                 std::vector<Refusal> refused, std::vector<Refusal> form_refused)
    : group_(std::move(group)),
      problem_(problem),
      instance_(std::move(instance)),
      plan_(plan),
      plan_owner_(plan.handle,
                  [owner = instance_](void* handle) {
                    if (!owner->plugin) return;
                    abi::AttentionPlan released{};
                    released.handle = handle;
                    owner->plugin->release(&released);
                  }),
      refused_(std::move(refused)),
      form_refused_(std::move(form_refused)) {}

void AttentionModule::run(Backend& backend, std::int32_t layer, const abi::BatchView& batch,
                          const AttentionInput& input, void* output, abi::Memory workspace) {
  const bool fused = (problem_.fusions & abi::kFusePreparation) != 0 && batch.max_new_tokens == 1 &&
                     batch.sequence_count >= 1 && batch.sequence_count <= 64 &&
                     (plan_.prepared_counts >> (batch.sequence_count - 1) & 1) != 0;
  abi::AttentionPreparation preparation{};
  if (fused) {
    preparation.size = sizeof preparation;
    preparation.values_from_keys = input.values_from_keys ? 1 : 0;
    preparation.projections = input.projections;
    preparation.projection_stride = input.stride;
    preparation.query_norm = input.query_norm;
    preparation.key_norm = input.key_norm;
    preparation.cosine = input.rotary.cosine;
    preparation.sine = input.rotary.sine;
    preparation.rotary_live = input.rotary.live;
    preparation.epsilon = input.epsilon;
  } else {
    backend.prepare_attention(input);
  }
  abi::AttentionArgs args{};
  args.size = sizeof args;
  args.stream = backend.stream();
  args.batch = &batch;
  args.kv = input.kv;
  args.queries = fused ? nullptr : input.queries;
  args.query_stride = problem_.query_heads * problem_.head_dim;
  args.output = output;
  args.output_stride = args.query_stride;
  args.workspace = workspace;
  args.preparation = fused ? &preparation : nullptr;
  SinkText text;
  abi::Status status;
  {
    const CountedCall counted(instance_->counter);
    status = instance_->plugin->run(plan_, args, text.sink());
  }
  if (status != abi::Status::ok) {
    check_call(
        status, instance_->plugin.plugin(),
        fmt::format("running layer {} ({} attention) on {} tokens", layer, group_.name, batch.token_count).c_str(),
        text);
  }
}

}  // namespace facet
