#include "explain_json.h"

#include "facet/sdk/attention.h"
#include "facet/sdk/linear.h"
#include "plan_json.h"

namespace facet::cli {
namespace {

void add_plugin(Json& entry, const LoadedPlugin& plugin, const std::string& options, const std::string& rule) {
  entry["plugin"] = plugin.descriptor->name;
  entry["version"] = plugin.descriptor->version;
  entry["file"] = plugin.file.string();
  entry["options"] = options;
  entry["rule"] = rule;
}

// Every installed plugin of a kind with default options, made once; those that cannot be made keep their reason.
template <typename Interface>
class Bystanders {
 public:
  explicit Bystanders(PluginRegistry& registry) {
    for (const PluginReport& report : registry.scan()) {
      if (report.plugin == nullptr || report.plugin->descriptor->kind != kKindOf<Interface>) continue;
      Asked asked{report.plugin, {}, report.reason};
      try {
        if (report.available || registry.runs_on_absent(*report.plugin))
          asked.instance = registry.create<Interface>(*report.plugin, OptionSet(*report.plugin->descriptor));
      } catch (const Error& error) {
        asked.reason = error.message();
      }
      asked_.push_back(std::move(asked));
    }
  }

  // Answers of all but those in `skipped`.
  template <typename Problem>
  Json ask(const Problem& problem, const std::vector<const LoadedPlugin*>& skipped) const {
    Json list = Json::array();
    for (const Asked& asked : asked_) {
      if (std::find(skipped.begin(), skipped.end(), asked.plugin) != skipped.end()) continue;
      SinkText reasons;
      const bool takes = asked.instance && asked.instance->supports(problem, reasons.sink()) != 0;
      list.push_back({{"plugin", asked.plugin->descriptor->name},
                      {"takes_it", takes},
                      {"reasons", asked.instance ? reasons.text() : asked.reason}});
    }
    return list;
  }

 private:
  struct Asked {
    const LoadedPlugin* plugin;
    PluginInstance<Interface> instance;
    std::string reason;
  };
  std::vector<Asked> asked_;
};

std::string weights_text(const LinearFormat& format) {
  std::string text = sdk::to_string(format.format);
  if (format.format == abi::WeightFormat::bf16) return text;
  return text + fmt::format(" g{} {}", format.group_size, format.symmetric ? "symmetric" : "asymmetric");
}

Json module_json(const LinearModule& module, const Bystanders<abi::Linear>* bystanders) {
  Json entry = {{"layer", module.layer()},
                {"module", module.name()},
                {"weights", weights_text(module.parts().front().format)},
                {"out_features", module.out_features()},
                {"in_features", module.in_features()},
                {"choices", Json::array()}};
  for (const LinearChoice& choice : module.choices()) {
    Json line = {{"min_rows", choice.min_rows}, {"max_rows", choice.max_rows}};
    const LoadedPlugin& plugin = choice.instance->plugin.plugin();
    add_plugin(line, plugin, choice.instance->options, choice.rule);
    line["rule_line"] = choice.rule_line;
    line["planned"] = choice.planned();
    line["layout"] = choice.plan.layout;
    line["packed_bytes"] = choice.plan.packed_bytes;
    line["workspace_bytes"] = choice.plan.workspace_bytes;
    line["fused"] = choice.planned() ? sdk::fusions_to_string(choice.problem.fusions) : std::string();
    line["refused"] = refusals_json(choice.refused);
    if (bystanders != nullptr) line["others"] = bystanders->ask(choice.problem, {&plugin});
    entry["choices"].push_back(std::move(line));
  }
  return entry;
}

Json attention_json(gemma4::Pipeline& pipeline, std::size_t group, const Bystanders<abi::Attention>* bystanders) {
  const AttentionModule& module = *pipeline.plan().attention()[group];
  const KvGroupSpec& spec = module.group();
  const Config& config = pipeline.config();
  const abi::KvLayout& layout = pipeline.plan().kv().groups()[group].plan.layout;
  Json entry = {{"group", spec.name}, {"layers", spec.layers}};
  const LoadedPlugin& plugin = module.instance().plugin.plugin();
  add_plugin(entry, plugin, module.instance().options,
             (spec.window > 0 ? config.attention_sliding : config.attention_global).key_path);
  entry["planned"] = module.planned();
  entry["layout"] = sdk::to_string(layout);
  entry["workspace_bytes"] = module.workspace_bytes();
  entry["kv_form"] = kv_form_text(module.problem().key_channels);
  entry["kv_form_refused"] = refusals_json(module.form_refused());
  entry["fused"] = sdk::attention_fusions_to_string(module.problem().fusions);
  entry["refused"] = refusals_json(module.refused());
  if (bystanders == nullptr) return entry;
  abi::AttentionProblem problem = module.problem();
  problem.fusions = 0;  // others are asked whether they could serve, not how
  entry["others"] = bystanders->ask(problem, {&plugin});
  return entry;
}

Json cache_json(const Config& config, const KvGroup& group) {
  Json entry = {{"group", group.spec.name}, {"layers", group.spec.layers}};
  add_plugin(entry, group.cache.plugin(), group.options,
             (group.spec.window > 0 ? config.kv_sliding : config.kv_global).key_path);
  entry["layout"] = sdk::to_string(group.plan.layout);
  entry["window"] = group.spec.window;
  entry["kv_heads"] = group.spec.kv_heads;
  entry["head_dim"] = group.spec.head_dim;
  entry["key_width"] = sdk::key_width(group.spec.head_dim, group.key_channels);
  entry["pool_bytes"] = group.plan.pool_bytes;
  entry["sequences_that_fit"] =
      group.plan.sequence_blocks > 0 ? group.plan.block_count / group.plan.sequence_blocks : 0;
  entry["prefix_reuse"] = group.plan.prefix_reuse != 0;
  entry["refused"] = refusals_json(group.refused);
  return entry;
}

}  // namespace

Json explain_json(gemma4::Pipeline& pipeline, bool ask_all) {
  const gemma4::SharedParts& shared = *pipeline.shared();
  const Config& config = pipeline.config();
  std::optional<Bystanders<abi::Linear>> linears;
  std::optional<Bystanders<abi::Attention>> attentions;
  if (ask_all) {
    linears.emplace(pipeline.registry());
    attentions.emplace(pipeline.registry());
  }
  Json document = {{"config_file", config.file.string()},
                   {"checkpoint", shared.source->description()},
                   {"device", shared.profile().description()},
                   {"device_absent", absence_json(pipeline)},
                   {"threads", shared.services->table()->worker_count},
                   {"cpu_features", describe_cpu_features(shared.services->table()->cpu_features)},
                   {"linear", Json::array()},
                   {"attention", Json::array()},
                   {"kv_cache", Json::array()}};
  for (const LinearGroup* group : pipeline.plan().linears()) {
    for (const LinearModule& module : group->modules())
      document["linear"].push_back(module_json(module, linears ? &*linears : nullptr));
  }
  for (std::size_t i = 0; i < pipeline.plan().attention().size(); ++i)
    document["attention"].push_back(attention_json(pipeline, i, attentions ? &*attentions : nullptr));
  for (const KvGroup& group : pipeline.plan().kv().groups()) document["kv_cache"].push_back(cache_json(config, group));
  Json scheduler = Json::object();
  add_plugin(scheduler, pipeline.scheduler().plugin.plugin(), pipeline.scheduler().options, config.scheduler.key_path);
  document["scheduler"] = std::move(scheduler);
  return document;
}

}  // namespace facet::cli
