#include "facet/engine/plugin_choice.h"

namespace facet {

std::vector<Candidate> candidates(const PluginChoice& choice) {
  std::vector<Candidate> list = {{choice.plugin, true}};
  for (const std::string& name : choice.fallback) list.push_back({name, false});
  return list;
}

ResolvedPlugin resolve_plugin(const Config& config, PluginRegistry& registry, abi::PluginKind kind,
                              const PluginChoice& choice, const Candidate& candidate) {
  const LoadedPlugin& loaded = registry.load(kind, candidate.name, config.file.parent_path());
  PluginChoice used = choice;
  if (!candidate.with_options) used.options.clear();
  Problems problems;
  OptionSet options = resolve_options(*loaded.descriptor, used, config.file.string(), problems);
  problems.throw_if_any(ErrorKind::config, fmt::format("{}: wrong options", config.file.string()));
  return {loaded, std::move(options)};
}

std::string refusals_text(const std::vector<Refusal>& refused) {
  std::string text;
  for (const Refusal& refusal : refused) text += fmt::format("\n  {}: {}", refusal.plugin, refusal.reasons);
  return text;
}

}  // namespace facet
