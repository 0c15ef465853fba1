#include "bench_config.h"

#include <algorithm>

#include "facet/base/text.h"
#include "gemma4/weight_source.h"
#include "synthetic_config.h"

namespace facet::cli {
namespace {

std::int64_t largest(const std::vector<std::int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

Config built_in_config(const BenchOptions& options) {
  const bool cuda = options.device == "cuda";
  Config config =
      parse_config(cuda ? kSyntheticCuda : kSyntheticCpu, "built-in configuration", std::filesystem::current_path());
  config.file = "built-in configuration";
  config.engine.max_sequences = largest(options.batch);
  config.engine.max_context = largest(options.prompt_tokens) + largest(options.generate);
  return config;
}

}  // namespace

Config bench_config(const BenchOptions& options) {
  if (options.config.empty() && options.synthetic.empty()) {
    throw_error(ErrorKind::usage,
                "neither a config nor --synthetic is given; write 'facet bench CONFIG' or 'facet bench --synthetic {}'",
                fmt::join(gemma4::synthetic_models(), " or "));
  }
  Config config = options.config.empty() ? built_in_config(options) : load_config(options.config);
  if (!options.synthetic.empty()) {
    config.model.synthetic = options.synthetic;
    config.model.path.clear();
    config.model.written.clear();
  }
  if (!options.device.empty()) config.engine.device = options.device;
  return config;
}

}  // namespace facet::cli
