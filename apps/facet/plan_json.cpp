#include "plan_json.h"

#include <cmath>
#include <cstdio>
#include <map>

#include "facet/base/text.h"
#include "facet/sdk/kv_rows.h"
#include "memory_limit.h"

namespace facet::cli {
namespace {

// KV bytes of one sequence of max_context tokens: its share of every pool.
std::uint64_t sequence_bytes(const KvManager& kv) {
  std::uint64_t bytes = 0;
  for (const KvGroup& group : kv.groups()) {
    if (group.plan.block_count <= 0) continue;
    const long double share =
        static_cast<long double>(group.plan.sequence_blocks) / static_cast<long double>(group.plan.block_count);
    bytes += static_cast<std::uint64_t>(std::ceil(static_cast<long double>(group.plan.pool_bytes) * share));
  }
  return bytes;
}

}  // namespace

Json refusals_json(const std::vector<Refusal>& refused) {
  Json list = Json::array();
  for (const Refusal& refusal : refused) list.push_back({{"plugin", refusal.plugin}, {"reasons", refusal.reasons}});
  return list;
}

const char* kv_form_text(std::int64_t key_channels) {
  return key_channels > 0 ? "shared" : "full";
}

Json kv_forms_json(const gemma4::Pipeline& pipeline) {
  Json list = Json::array();
  for (const auto& module : pipeline.plan().attention()) {
    const abi::AttentionProblem& problem = module->problem();
    list.push_back({{"group", module->group().name},
                    {"form", kv_form_text(problem.key_channels)},
                    {"row_elements", sdk::key_value_width(problem.head_dim, problem.key_channels)},
                    {"full_row_elements", 2 * problem.head_dim},
                    {"refused", refusals_json(module->form_refused())}});
  }
  return list;
}

Json absence_json(const gemma4::Pipeline& pipeline) {
  const std::string reason = pipeline.shared()->profile().absence();
  return reason.empty() ? Json() : Json(reason);
}

Json left_out_json(const gemma4::Pipeline& pipeline) {
  std::map<std::string, std::size_t> linears, attentions;
  for (const LinearGroup* group : pipeline.plan().linears()) {
    for (const LinearModule& module : group->modules()) {
      for (const LinearChoice& choice : module.choices())
        if (!choice.planned()) ++linears[choice.instance->plugin.plugin().descriptor->name];
    }
  }
  for (const auto& module : pipeline.plan().attention())
    if (!module->planned()) ++attentions[module->instance().plugin.plugin().descriptor->name];
  Json list = Json::array();
  for (const auto& [name, places] : linears)
    list.push_back(
        {{"kind", "linear"}, {"plugin", name}, {"places", places}, {"leaves_out", "packed weights and workspace"}});
  for (const auto& [name, places] : attentions)
    list.push_back({{"kind", "attention"},
                    {"plugin", name},
                    {"places", places},
                    {"leaves_out", "workspace (KV pools are those of the cache's first layout)"}});
  return list;
}

Json plan_json(const gemma4::Pipeline& pipeline) {
  const MemoryPlan memory = pipeline.memory();
  const EngineConfig& engine = pipeline.config().engine;
  Json document = {{"config_file", pipeline.config().file.string()},
                   {"checkpoint", pipeline.shared()->source->description()},
                   {"device", pipeline.shared()->profile().description()},
                   {"device_absent", absence_json(pipeline)},
                   {"left_out", left_out_json(pipeline)}};
  document.update(memory_json(memory));
  document["total"] = memory_use(pipeline).total();
  document["kv_per_sequence"] = sequence_bytes(pipeline.plan().kv());
  document["kv_forms"] = kv_forms_json(pipeline);
  document["max_sequences"] = engine.max_sequences;
  document["max_context"] = engine.max_context;
  document["max_step_tokens"] = engine.max_step_tokens;
  document["max_sequence_tokens"] = pipeline.plan().kv().max_sequence_tokens();
  return document;
}

void print_absence(const Json& document, const char* what) {
  const Json& reason = document["device_absent"];
  if (reason.is_null()) return;
  fmt::print("{} for a GPU that is not here ({})\n", what, reason.get<std::string>());
}

}  // namespace facet::cli
