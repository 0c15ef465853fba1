#include "facet/engine/attention_module.h"

namespace facet {

AttentionModule::AttentionModule(KvGroupSpec group, const abi::AttentionProblem& problem,
                                 std::shared_ptr<AttentionInstance> instance, const abi::AttentionPlan& plan,
                                 std::vector<Refusal> refused)
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
      refused_(std::move(refused)) {}

void AttentionModule::run(const Backend& backend, std::int32_t layer, const abi::BatchView& batch,
                          const abi::KvView& kv, const void* queries, void* output, abi::Memory workspace) {
  abi::AttentionArgs args{};
  args.size = sizeof args;
  args.stream = backend.stream();
  args.batch = &batch;
  args.kv = &kv;
  args.queries = queries;
  args.query_stride = problem_.query_heads * problem_.head_dim;
  args.output = output;
  args.output_stride = args.query_stride;
  args.workspace = workspace;
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
