// The configuration with everything that its plugins decide written out.
#pragma once

#include "facet/config/config.h"
#include "facet/plugin/registry.h"

namespace facet::cli {

// `config` with the default of every option that it leaves out. Fallbacks run with their defaults and need none
// written. A choice whose plugin cannot be loaded or does not know the options stays as it is: it may be a rule for
// more rows than a step has, which does not keep a run from ending well either.
Config with_option_defaults(const Config& config, PluginRegistry& registry);

}  // namespace facet::cli
