// The linear rules of a configuration held against the modules of a model.
#pragma once

#include <vector>

#include "facet/engine/linear_module.h"

namespace facet::gemma4 {

// Throws Error(config) with every rule that can never serve anything: one whose pattern matches no module, and one that
// rules before it leave nothing to. The default may be left nothing to: it must be there. Rules of the file may be left
// nothing to by those of a tuning file. A rule whose rows never meet in a step is warned of.
void check_rules(const Config& config, const std::vector<LinearSpec>& specs);

// The rules without those that earlier ones leave nothing to; the default, the last one, stays. As rules of one file
// they pass check_rules() wherever they pass it with a tuning file, and serve the same.
std::vector<LinearRule> rules_with_work(const std::vector<LinearRule>& rules, const std::vector<LinearSpec>& specs);

}  // namespace facet::gemma4
