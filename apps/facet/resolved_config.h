// The configuration with everything that its plugins decide written out.
#pragma once

#include "facet/config/config.h"
#include "facet/plugin/registry.h"

namespace facet::cli {

// `config` with the default of every option that it leaves out. Fallbacks run with their defaults and need none
// written. The choices are those of a pipeline, whose plugins and options were checked.
Config with_option_defaults(const Config& config, PluginRegistry& registry);

}  // namespace facet::cli
