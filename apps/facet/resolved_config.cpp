#include "resolved_config.h"

#include "facet/engine/plugin_choice.h"
#include "gemma4/rule_check.h"

namespace facet::cli {

Config with_option_defaults(const Config& config, PluginRegistry& registry) {
  check_choices(config, registry);
  Config whole = config;
  const auto fill = [&](abi::PluginKind kind, PluginChoice& choice) {
    choice.options = resolve_plugin(config, registry, kind, choice, candidates(choice).front()).options.entries();
  };
  for (LinearRule& rule : whole.linear) fill(abi::PluginKind::linear, rule.choice);
  for (PluginChoice* choice : {&whole.attention_sliding, &whole.attention_global})
    fill(abi::PluginKind::attention, *choice);
  for (PluginChoice* choice : {&whole.kv_sliding, &whole.kv_global}) fill(abi::PluginKind::kv_cache, *choice);
  fill(abi::PluginKind::scheduler, whole.scheduler);
  return whole;
}

Config with_option_defaults(gemma4::Pipeline& pipeline) {
  Config whole = with_option_defaults(pipeline.config(), pipeline.registry());
  if (whole.tuning.rules > 0) whole.linear = gemma4::rules_with_work(whole.linear, pipeline.plan().linear_specs());
  return whole;
}

}  // namespace facet::cli
