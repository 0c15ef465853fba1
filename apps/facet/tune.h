// facet bench --tune: which linear plugin of a configuration is fastest for which module and row count.
#pragma once

#include <filesystem>

#include "common.h"

namespace facet::cli {

// Measures the linear plugins that the configuration names, fallbacks left out, on the model's matrices at 1, 2, 4, ...
// rows, and writes a file for linear.tuning. The pipeline is planned and not loaded. Returns what was measured:
// {"device", "file", "modules": [{"layers", "matrices", "rows": [{"rows", "best", "plugins": [{"plugin", "options",
// "us"}]}]}], "rules"}; us of one matrix. Throws Error(config) when the configuration names one plugin only, Error(run)
// when no plugin serves a module. A module that only one of them takes draws a warning.
Json tune(gemma4::Pipeline& pipeline, const std::filesystem::path& file, std::int64_t repeat);
void print_tuning(const Json& document);

}  // namespace facet::cli
