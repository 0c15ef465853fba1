#include "bench_config.h"

#include <algorithm>

#include "facet/base/text.h"
#include "facet/plugin/cuda_plugins.h"
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
    config.model.line = 0;  // the file does not name this one
  }
  if (!options.device.empty()) config.engine.device = options.device;
  return config;
}

Error in_words_of(const BenchOptions& options, const Error& error) {
  std::string text = error.message();
  const auto replace = [&text](std::string_view key, std::string_view option) {
    std::size_t at = text.find(key);
    const bool found = at != std::string::npos;
    for (; at != std::string::npos; at = text.find(key, at + option.size())) text.replace(at, key.size(), option);
    return found;
  };
  if (options.config.empty()) {
    replace("engine.max_sequences = ", "--batch ");
    replace("engine.max_context = ", "--prompt-tokens and --generate together ");
    replace("engine.max_context:", "--prompt-tokens and --generate together:");
  }
  if (!options.synthetic.empty()) replace("model.synthetic:", "--synthetic:");
  const bool device = !options.device.empty() && replace("engine.device:", "--device:");
  if (device) replace(kCpuCure, "leave --device out, or write --device cpu");
  Error worded(error.kind(), std::move(text));
  // Places of the file say nothing about a device that the file does not name.
  if (device) return worded;
  for (const std::string& place : error.context()) worded.add_context(place);
  return worded;
}

}  // namespace facet::cli
