// The rules of a tuning file, see LinearTuning.
#pragma once

#include <string_view>

#include "facet/config/config.h"

namespace facet::config {

// Puts the rules of `text`, the content of config.tuning.file, before those of the config, and notes the device. Throws
// Error(config) as load_config() does.
void add_tuned_rules(std::string_view text, Config& config);

}  // namespace facet::config
