// facet plan: every byte before anything is loaded, and what would fit a limit.
#include <cmath>
#include <cstdio>

#include "byte_size.h"
#include "common.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "memory_limit.h"

namespace facet::cli {
namespace {

struct PlanOptions {
  std::string config;
};

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

Json plan_json(const gemma4::Pipeline& pipeline) {
  const MemoryPlan memory = pipeline.memory();
  const EngineConfig& engine = pipeline.config().engine;
  Json document = {{"config_file", pipeline.config().file.string()},
                   {"checkpoint", pipeline.shared()->source->description()}};
  document.update(memory_json(memory));
  document["total"] = memory_use(pipeline).total();
  document["kv_per_sequence"] = sequence_bytes(pipeline.plan().kv());
  document["max_sequences"] = engine.max_sequences;
  document["max_context"] = engine.max_context;
  document["max_step_tokens"] = engine.max_step_tokens;
  document["max_sequence_tokens"] = pipeline.plan().kv().max_sequence_tokens();
  return document;
}

void print_plan(const gemma4::Pipeline& pipeline, const Json& document) {
  const MemoryPlan memory = pipeline.memory();
  const MemoryUse use = memory_use(pipeline);
  const auto line = [](const char* name, std::uint64_t bytes, const char* remark) {
    fmt::print("{:<24} {:>16}  {:>10}{}\n", name, bytes, format_bytes(bytes), remark);
  };
  for (const MemoryCategory& category : use.limited) line(category.name, category.bytes, "");
  if (use.host.empty()) {
    line("total", memory.allocated(), "  allocated; mapped weights are pages of the checkpoint");
    line("total with mapped", use.total(), "  allocated and mapped; a limit counts this");
  } else {
    line("total", use.total(), "  of the GPU's memory; a limit counts this");
    for (const MemoryCategory& category : use.host) line(category.name, category.bytes, "  of the host's memory");
  }
  const auto one = document["kv_per_sequence"].get<std::uint64_t>();
  fmt::print("{} sequences of {} tokens fit the KV pools at the same time; each takes {} bytes ({})\n",
             memory.sequences_that_fit, pipeline.config().engine.max_context, one, format_bytes(one));
}

// CUDA plugins size workspace and packed weights by the GPU they run on, so without one there is no plan.
std::unique_ptr<gemma4::Pipeline> open_planned(const std::string& config_file, const GlobalOptions& global) {
  const Config config = load_config(config_file);
  try {
    return open_pipeline(config, global, false);
  } catch (Error& error) {
    if (config.engine.device == "cuda")
      error.add_context(
          fmt::format("{}: a plan for CUDA asks plugins that size their memory by the GPU they find, so "
                      "it is made on a machine that has one",
                      config_file));
    throw;
  }
}

void plan(const PlanOptions& options, const GlobalOptions& global) {
  const bool limited = !global.memory_limit.empty();
  const std::uint64_t limit = limited ? parse_byte_size(global.memory_limit, "--memory-limit") : 0;
  const auto pipeline = open_planned(options.config, global);
  const bool above = limited && memory_use(*pipeline).total() > limit;
  Json document = plan_json(*pipeline);
  Json fits = Json::object();
  if (above) fits = what_fits(*pipeline, global, limit);
  if (limited) {
    document["memory_limit"] = limit;
    document["within_limit"] = !above;
    if (above) document["would_fit"] = fits;
  }
  if (global.json) {
    print_json(document);
  } else {
    print_plan(*pipeline, document);
  }
  if (above) refuse_plan(*pipeline, limit, "the limit", fits);
}

}  // namespace

void add_plan(CLI::App& app, GlobalOptions& global) {
  CLI::App* command = app.add_subcommand("plan", "Memory by category, before anything is loaded");
  auto options = std::make_shared<PlanOptions>();
  command->add_option("config", options->config, "TOML file")->required();
  add_memory_limit_option(*command, global);
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    plan(*options, global);
  });
}

}  // namespace facet::cli
