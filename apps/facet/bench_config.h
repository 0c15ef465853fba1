// facet bench: the configuration that its options ask for.
#pragma once

#include "bench_measure.h"

namespace facet::cli {

// The file of the options, with their synthetic model and device in place of its own. Without a file, one of the
// built-in texts (configs/gemma4-12b-synthetic.toml, configs/cuda/gemma4-12b-synthetic.toml) with room for what is
// measured. Throws Error(usage) when there is neither file nor synthetic model.
Config bench_config(const BenchOptions& options);

// An error about that configuration, with the option in place of a key of the file that the option has set.
Error in_words_of(const BenchOptions& options, const Error& error);

}  // namespace facet::cli
