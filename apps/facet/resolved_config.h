// The configuration with everything that its plugins decide written out.
#pragma once

#include "facet/config/config.h"
#include "facet/plugin/registry.h"
#include "gemma4/pipeline.h"

namespace facet::cli {

// `config` with the default of every option that it leaves out. Fallbacks run with their defaults and need none
// written. Throws where a plugin or an option is wrong, as check_choices() does.
Config with_option_defaults(const Config& config, PluginRegistry& registry);
// The same of a pipeline, without the rules that those of a tuning file leave nothing to: written as one file they
// would be refused.
Config with_option_defaults(gemma4::Pipeline& pipeline);

}  // namespace facet::cli
