// The linear rules of a configuration held against the modules of a model.
#pragma once

#include <vector>

#include "facet/engine/linear_module.h"

namespace facet::gemma4 {

// Throws Error(config) with every rule that can never serve anything: one whose pattern matches no module, and one that
// rules before it leave nothing to. The default may be left nothing to: it must be there. Rules of the file may be left
// nothing to by those of a tuning file. A rule whose rows never meet in a step is warned of.
void check_rules(const Config& config, const std::vector<LinearSpec>& specs);

}  // namespace facet::gemma4
