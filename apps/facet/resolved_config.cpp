#include "resolved_config.h"

#include "facet/engine/plugin_choice.h"

namespace facet::cli {

Config with_option_defaults(const Config& config, PluginRegistry& registry) {
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

}  // namespace facet::cli
