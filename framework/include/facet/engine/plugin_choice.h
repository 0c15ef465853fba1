// From a choice in the config to a loaded plugin with checked options; the same for every kind.
#pragma once

#include <string>
#include <vector>

#include "facet/config/config.h"
#include "facet/engine/plugin_call.h"

namespace facet {

// A plugin of a choice, in the order in which they are asked. Only the first takes the options of the file.
struct Candidate {
  std::string name;
  bool with_options;
};
std::vector<Candidate> candidates(const PluginChoice& choice);

struct ResolvedPlugin {
  const LoadedPlugin& plugin;
  OptionSet options;
};
// Loads the plugin (paths are relative to the config file) and checks its options. Throws Error(plugin) or
// Error(config).
ResolvedPlugin resolve_plugin(const Config& config, PluginRegistry& registry, abi::PluginKind kind,
                              const PluginChoice& choice, const Candidate& candidate);

// "\n  name: reasons" for each, to end a message with.
std::string refusals_text(const std::vector<Refusal>& refused);

}  // namespace facet
