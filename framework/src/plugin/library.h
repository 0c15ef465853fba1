// Loads and checks one plugin library; each file once in a process.
#pragma once

#include <filesystem>
#include <string>

#include "facet/plugin/registry.h"

namespace facet {

// All checks up to the descriptor (framework/README.md section 1 and 2), in their order. Throws Error(plugin).
// Thread-safe.
const LoadedPlugin& load_library(const std::filesystem::path& file);

// What probe() or create() said.
struct CallOutcome {
  abi::Status status = abi::Status::ok;
  std::string text;  // lines joined with "; "
};

// Runs the plugin's probe; whatever it throws becomes a failed outcome. No probe: ok.
CallOutcome probe_plugin(const LoadedPlugin& plugin, const abi::HostTable* host);
// Runs the plugin's create; whatever it throws becomes a failed outcome.
CallOutcome create_instance(const LoadedPlugin& plugin, const abi::HostTable* host, const abi::Options& options,
                            void** instance);

}  // namespace facet
