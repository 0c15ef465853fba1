#include "memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <functional>

#include "byte_size.h"
#include "facet/base/text.h"
#include "request_file.h"

namespace facet::cli {
namespace {

// Memory of the machine, free or not; 0 where the system does not say.
std::uint64_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size) : 0;
}

// A chunk of a prompt and a context are tried in steps of so many tokens.
constexpr std::int64_t kTokenStep = 256;

bool on_gpu(const gemma4::Pipeline& pipeline) {
  return pipeline.shared()->profile().device() != abi::Device::cpu;
}

// Plans the same config again with other sizes and says how many bytes it takes.
std::uint64_t planned_bytes(const gemma4::Pipeline& pipeline, const GlobalOptions& global,
                            const std::function<void(EngineConfig&)>& change) {
  Config config = pipeline.config();
  change(config.engine);
  gemma4::PipelineOptions options;
  options.plugin_dirs = absolute_plugin_dirs(global);
  return memory_use(gemma4::Pipeline(std::move(config), std::move(options), pipeline.shared())).total();
}

// Largest value in [1, below) for which `bytes_at` stays within the limit, or 0. bytes_at never falls with its value.
std::int64_t largest_that_fits(std::int64_t below, std::uint64_t limit,
                               const std::function<std::uint64_t(std::int64_t)>& bytes_at) {
  std::int64_t fits = 0;
  for (std::int64_t over = below; over - fits > 1;) {
    const std::int64_t middle = fits + (over - fits) / 2;
    (bytes_at(middle) <= limit ? fits : over) = middle;
  }
  return fits;
}

// The same for a count of tokens, by whole steps.
std::int64_t most_tokens_that_fit(std::int64_t now, std::uint64_t limit,
                                  const std::function<std::uint64_t(std::int64_t)>& bytes_at) {
  const std::int64_t steps = largest_that_fits((now + kTokenStep - 1) / kTokenStep, limit,
                                               [&](std::int64_t count) { return bytes_at(count * kTokenStep); });
  return steps * kTokenStep;
}

std::int64_t chunk_of(const EngineConfig& engine) {
  return engine.prefill_chunk > 0 ? engine.prefill_chunk : engine.max_step_tokens;
}

// Bytes of the weights alone, which no size of the engine changes.
std::uint64_t weight_bytes(const MemoryUse& use) {
  std::uint64_t bytes = 0;
  for (const MemoryCategory& category : use.limited) {
    if (std::string_view(category.name).starts_with("weights")) bytes += category.bytes;
  }
  return bytes;
}

std::string advice(const Json& fits, const EngineConfig& engine, const MemoryUse& use, std::uint64_t limit) {
  const std::uint64_t weights = weight_bytes(use);
  if (weights > limit) {
    return fmt::format(
        "\n  the weights alone take {} bytes ({}), so no sizes of the engine fit; take smaller weights or allow more "
        "memory",
        weights, format_bytes(weights));
  }
  std::string text;
  for (const auto& [key, value] : fits.items()) {
    const std::int64_t now = key == "max_sequences" ? engine.max_sequences
                             : key == "max_context" ? engine.max_context
                                                    : chunk_of(engine);
    text += fmt::format("\n  would fit: engine.{} = {} (now {})", key, value.get<std::int64_t>(), now);
  }
  if (!text.empty()) return text;
  return fmt::format(
      "\n  neither fewer sequences nor a shorter context fits alone; lower engine.max_step_tokens (now {}), bound the "
      "cache's pool, or take smaller weights",
      engine.max_step_tokens);
}

}  // namespace

std::uint64_t MemoryUse::total() const {
  std::uint64_t bytes = 0;
  for (const MemoryCategory& category : limited) bytes += category.bytes;
  return bytes;
}

MemoryUse memory_use(const gemma4::Pipeline& pipeline) {
  const MemoryPlan memory = pipeline.memory();
  MemoryUse use;
  use.limited = {{"weights, packed", memory.weights}};
  (on_gpu(pipeline) ? use.host : use.limited)
      .insert(on_gpu(pipeline) ? use.host.end() : use.limited.end(),
              {{"weights, beside the file", memory.weights_unpacked}, {"weights, mapped", memory.weights_mapped}});
  use.limited.insert(use.limited.end(), {{"KV, sliding layers", memory.kv_sliding},
                                         {"KV, global layers", memory.kv_global},
                                         {"workspace", memory.workspace},
                                         {"activations", memory.activations}});
  return use;
}

Json what_fits(const gemma4::Pipeline& pipeline, const GlobalOptions& global, std::uint64_t limit) {
  const EngineConfig& engine = pipeline.config().engine;
  const auto bytes_with = [&](std::int64_t EngineConfig::*key) {
    return [&pipeline, &global, key](std::int64_t value) {
      return planned_bytes(pipeline, global, [&](EngineConfig& changed) { changed.*key = value; });
    };
  };
  Json fits = Json::object();
  const auto add = [&](const char* key, std::int64_t value) {
    if (value > 0) fits[key] = value;
  };
  add("max_sequences", largest_that_fits(engine.max_sequences, limit, bytes_with(&EngineConfig::max_sequences)));
  add("max_context", most_tokens_that_fit(engine.max_context, limit, bytes_with(&EngineConfig::max_context)));
  add("prefill_chunk", most_tokens_that_fit(chunk_of(engine), limit, bytes_with(&EngineConfig::prefill_chunk)));
  return fits;
}

void refuse_plan(const gemma4::Pipeline& pipeline, std::uint64_t limit, const std::string& limit_name,
                 const Json& fits) {
  const MemoryUse use = memory_use(pipeline);
  std::vector<MemoryCategory> largest = use.limited;
  std::sort(largest.begin(), largest.end(),
            [](const MemoryCategory& a, const MemoryCategory& b) { return a.bytes > b.bytes; });
  std::string text;
  for (std::size_t i = 0; i < 3; ++i)
    text += fmt::format("\n  {}: {} ({})", largest[i].name, largest[i].bytes, format_bytes(largest[i].bytes));
  throw_error(ErrorKind::run, "{}: the plan takes {} bytes ({}){}, {} more than {} of {} bytes ({}); largest are:{}{}",
              pipeline.config().file.string(), use.total(), format_bytes(use.total()),
              on_gpu(pipeline) ? " of the GPU's memory" : "", format_bytes(use.total() - limit), limit_name, limit,
              format_bytes(limit), text, advice(fits, pipeline.config().engine, use, limit));
}

void check_memory_limit(const gemma4::Pipeline& pipeline, const GlobalOptions& global) {
  const std::uint64_t total = memory_use(pipeline).total();
  const auto require = [&](std::uint64_t limit, const std::string& name) {
    if (total > limit) refuse_plan(pipeline, limit, name, what_fits(pipeline, global, limit));
  };
  if (!global.memory_limit.empty()) require(parse_byte_size(global.memory_limit, "--memory-limit"), "the limit");
  // Pages of a mapped checkpoint can be read again, so they alone are no reason to refuse.
  const std::uint64_t physical = physical_memory();
  if (!on_gpu(pipeline) && physical > 0 && pipeline.memory().allocated() > physical)
    require(physical, "the machine's memory");
  // Weights that another pipeline has packed are shared, so what is free says nothing then.
  const std::optional<std::uint64_t> free = pipeline.shared()->backend->free_memory();
  if (free && pipeline.shared()->store->bytes() == 0) require(*free, "the free memory");
}

void add_memory_limit_option(CLI::App& command, GlobalOptions& global) {
  command
      .add_option("--memory-limit", global.memory_limit,
                  "Stop before weights are read when the plan takes more, e.g. 10GiB or 512MiB; on a GPU, of its "
                  "memory")
      ->check(not_empty());
}

}  // namespace facet::cli
