// facet plan: every byte before anything is loaded, and what would fit a limit.
#include <cmath>
#include <cstdio>

#include "byte_size.h"
#include "common.h"
#include "facet/base/log.h"
#include "facet/base/text.h"

namespace facet::cli {
namespace {

struct PlanOptions {
  std::string config, limit;
};

struct Category {
  const char* name;
  std::uint64_t bytes;
};

// Everything that is allocated, and the mapped weights, whose pages every step touches.
std::vector<Category> categories(const MemoryPlan& memory) {
  return {{"weights, packed", memory.weights},        {"weights, beside the file", memory.weights_unpacked},
          {"weights, mapped", memory.weights_mapped}, {"KV, sliding layers", memory.kv_sliding},
          {"KV, global layers", memory.kv_global},    {"workspace", memory.workspace},
          {"activations", memory.activations}};
}

std::uint64_t total_bytes(const MemoryPlan& memory) {
  return memory.allocated() + memory.weights_mapped;
}

// KV bytes of one sequence of max_context tokens: its share of every pool.
std::uint64_t sequence_bytes(const KvManager& kv) {
  std::uint64_t bytes = 0;
  for (const KvGroup& group : kv.groups()) {
    if (group.plan.block_count <= 0) continue;
    const long double share =
        static_cast<long double>(group.plan.sequence_blocks) / static_cast<long double>(group.plan.block_count);
    bytes += static_cast<std::uint64_t>(std::ceil(static_cast<long double>(group.plan.pool_bytes) * share));
  }
  return bytes;
}

// Plans the same config again with other sizes and says how many bytes it takes.
std::uint64_t planned_bytes(const gemma4::Pipeline& pipeline, const GlobalOptions& global,
                            const std::function<void(EngineConfig&)>& change) {
  Config config = pipeline.config();
  change(config.engine);
  gemma4::PipelineOptions options;
  for (const std::string& directory : global.plugin_dirs)
    options.plugin_dirs.push_back(std::filesystem::absolute(directory));
  return total_bytes(gemma4::Pipeline(std::move(config), std::move(options), pipeline.shared()).memory());
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

// What to change so that the limit holds; empty when neither fewer sequences nor a shorter context is enough.
Json what_fits(const gemma4::Pipeline& pipeline, const GlobalOptions& global, std::uint64_t limit) {
  constexpr std::int64_t kContextStep = 256;
  const EngineConfig& engine = pipeline.config().engine;
  Json fits = Json::object();
  const std::int64_t sequences = largest_that_fits(engine.max_sequences, limit, [&](std::int64_t count) {
    return planned_bytes(pipeline, global, [&](EngineConfig& changed) { changed.max_sequences = count; });
  });
  if (sequences > 0) fits["max_sequences"] = sequences;
  const std::int64_t steps =
      largest_that_fits((engine.max_context + kContextStep - 1) / kContextStep, limit, [&](std::int64_t count) {
        return planned_bytes(pipeline, global,
                             [&](EngineConfig& changed) { changed.max_context = count * kContextStep; });
      });
  if (steps > 0) fits["max_context"] = steps * kContextStep;
  return fits;
}

std::string advice(const Json& fits, const EngineConfig& engine) {
  std::string text;
  for (const auto& [key, value] : fits.items()) {
    text += fmt::format("\n  would fit: engine.{} = {} (now {})", key, value.get<std::int64_t>(),
                        key == "max_sequences" ? engine.max_sequences : engine.max_context);
  }
  if (!text.empty()) return text;
  return fmt::format(
      "\n  neither fewer sequences nor a shorter context fits alone; lower engine.max_step_tokens (now {}), bound the "
      "cache's pool, or take smaller weights",
      engine.max_step_tokens);
}

[[noreturn]] void refuse(const MemoryPlan& memory, std::uint64_t limit, const Json& fits, const EngineConfig& engine) {
  std::vector<Category> largest = categories(memory);
  std::sort(largest.begin(), largest.end(), [](const Category& a, const Category& b) { return a.bytes > b.bytes; });
  const std::uint64_t total = total_bytes(memory);
  std::string text;
  for (std::size_t i = 0; i < 3; ++i)
    text += fmt::format("\n  {}: {} ({})", largest[i].name, largest[i].bytes, format_bytes(largest[i].bytes));
  throw_error(ErrorKind::run, "the plan takes {} bytes ({}), {} more than the limit of {} bytes ({}); largest are:{}{}",
              total, format_bytes(total), format_bytes(total - limit), limit, format_bytes(limit), text,
              advice(fits, engine));
}

Json plan_json(const gemma4::Pipeline& pipeline) {
  const MemoryPlan memory = pipeline.memory();
  const EngineConfig& engine = pipeline.config().engine;
  Json document = {{"config_file", pipeline.config().file.string()},
                   {"checkpoint", pipeline.shared()->source->description()}};
  document.update(memory_json(memory));
  document["total"] = total_bytes(memory);
  document["kv_per_sequence"] = sequence_bytes(pipeline.plan().kv());
  document["max_sequences"] = engine.max_sequences;
  document["max_context"] = engine.max_context;
  document["max_step_tokens"] = engine.max_step_tokens;
  document["max_sequence_tokens"] = pipeline.plan().kv().max_sequence_tokens();
  return document;
}

void print_plan(const gemma4::Pipeline& pipeline, const Json& document) {
  const MemoryPlan memory = pipeline.memory();
  for (const Category& category : categories(memory))
    fmt::print("{:<20} {:>16}  {:>10}\n", category.name, category.bytes, format_bytes(category.bytes));
  fmt::print("{:<20} {:>16}  {:>10}  allocated; mapped weights are pages of the checkpoint\n", "total",
             memory.allocated(), format_bytes(memory.allocated()));
  fmt::print("{:<20} {:>16}  {:>10}  allocated and mapped; a limit counts this\n", "total with mapped",
             total_bytes(memory), format_bytes(total_bytes(memory)));
  const auto one = document["kv_per_sequence"].get<std::uint64_t>();
  fmt::print("{} sequences of {} tokens fit the KV pools at the same time; each takes {} bytes ({})\n",
             memory.sequences_that_fit, pipeline.config().engine.max_context, one, format_bytes(one));
}

void plan(const PlanOptions& options, const GlobalOptions& global) {
  const std::uint64_t limit = options.limit.empty() ? 0 : parse_byte_size(options.limit, "--memory-limit");
  const auto pipeline = open_pipeline(options.config, global, false);
  const MemoryPlan memory = pipeline->memory();
  const bool above = !options.limit.empty() && total_bytes(memory) > limit;
  Json document = plan_json(*pipeline);
  Json fits = Json::object();
  if (above) fits = what_fits(*pipeline, global, limit);
  if (!options.limit.empty()) {
    document["memory_limit"] = limit;
    document["within_limit"] = !above;
    if (above) document["would_fit"] = fits;
  }
  if (global.json) {
    print_json(document);
  } else {
    print_plan(*pipeline, document);
  }
  if (above) refuse(memory, limit, fits, pipeline->config().engine);
}

}  // namespace

void add_plan(CLI::App& app, GlobalOptions& global) {
  CLI::App* command = app.add_subcommand("plan", "Memory by category, before anything is loaded");
  auto options = std::make_shared<PlanOptions>();
  command->add_option("config", options->config, "TOML file")->required();
  command->add_option("--memory-limit", options->limit, "Fail when the plan takes more, e.g. 10GiB or 512MiB");
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    plan(*options, global);
  });
}

}  // namespace facet::cli
