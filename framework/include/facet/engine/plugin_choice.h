// From a choice in the config to a loaded plugin with checked options; the same for every kind.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "facet/config/config.h"
#include "facet/engine/plugin_call.h"

namespace facet {

// A plugin of a choice, in the order in which they are asked. Only the first takes the options of the file.
struct Candidate {
  std::string name;
  bool with_options;
  int line;              // where the file names it, 0: nowhere
  std::string key_path;  // "linear.rules[0].plugin", "attention.global.fallback[1]"
};
std::vector<Candidate> candidates(const PluginChoice& choice);

// Holds what the file says about plugins against those that are there, used or not: folders of [plugins] path, every
// name and file, of fallbacks too, and options. Throws Error with all mistakes: config where folders or options are
// wrong, else plugin.
void check_choices(const Config& config, PluginRegistry& registry);

struct ResolvedPlugin {
  const LoadedPlugin& plugin;
  OptionSet options;
};
// Loads the plugin (paths are relative to the config file) and checks its options. Throws Error(plugin) or
// Error(config); both begin with file, line and key.
ResolvedPlugin resolve_plugin(const Config& config, PluginRegistry& registry, abi::PluginKind kind,
                              const PluginChoice& choice, const Candidate& candidate);

// The error with the candidate's place in the file before its message.
Error at_place(const Config& config, const Candidate& candidate, const Error& error);

template <typename Interface>
struct MadePlugin {
  PluginInstance<Interface> instance;
  std::string options;  // resolved, as text
};
// PluginRegistry::create(), whose refusals then begin with file, line and key too.
template <typename Interface>
MadePlugin<Interface> make_plugin(const Config& config, PluginRegistry& registry, const Candidate& candidate,
                                  const ResolvedPlugin& resolved) {
  try {
    return {registry.create<Interface>(resolved.plugin, resolved.options), resolved.options.to_string()};
  } catch (const Error& error) {
    throw at_place(config, candidate, error);
  }
}

// "\n  name: reasons" for each, to end a message with.
std::string refusals_text(const std::vector<Refusal>& refused);

}  // namespace facet
