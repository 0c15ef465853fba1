// facet plan: every byte before anything is loaded, and what would fit a limit.
#include <cstdio>

#include "byte_size.h"
#include "common.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "memory_limit.h"
#include "plan_json.h"

namespace facet::cli {
namespace {

struct PlanOptions {
  std::string config;
};

// Where the device is not here: what the numbers are worth.
void print_worth(const Json& document) {
  if (document["device_absent"].is_null()) return;
  print_absence(document, "planned");
  fmt::print("  its memory is not known, so nothing but --memory-limit bounds this plan\n");
  for (const Json& entry : document["left_out"]) {
    fmt::print("  {} plugin '{}' plans only on its device; left out in {} places: {}\n",
               entry["kind"].get<std::string>(), entry["plugin"].get<std::string>(), entry["places"].get<std::size_t>(),
               entry["leaves_out"].get<std::string>());
  }
  fmt::print("  {}\n", document["left_out"].empty()
                           ? "every plugin plans without its device: a GPU gives the same numbers"
                           : "the numbers without that are those of a GPU, and the total is a lower bound");
}

// Where a cache could have the shared form: whether it has, and why not.
void print_forms(const Json& forms) {
  for (const Json& entry : forms) {
    const auto group = entry["group"].get<std::string>();
    const auto elements = entry["row_elements"].get<std::int64_t>(),
               full = entry["full_row_elements"].get<std::int64_t>();
    if (elements < full)
      fmt::print("{} layers: shared form of the cache, {} of {} elements a token and KV head\n", group, elements, full);
    for (const Json& refusal : entry["refused"])
      fmt::print("{} layers: no shared form of the cache: {}: {}\n", group, refusal["plugin"].get<std::string>(),
                 refusal["reasons"].get<std::string>());
  }
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
  print_forms(document["kv_forms"]);
  print_worth(document);
  if (document.contains("within_limit") && document["within_limit"].is_null())
    fmt::print("whether the limit holds is not known: the plan is below it, with something left out\n");
}

void plan(const PlanOptions& options, const GlobalOptions& global) {
  const bool limited = !global.memory_limit.empty();
  const std::uint64_t limit = limited ? parse_byte_size(global.memory_limit, "--memory-limit") : 0;
  const auto pipeline = open_plan(options.config, global);
  const bool above = limited && memory_use(*pipeline).total() > limit;
  Json document = plan_json(*pipeline);
  Json fits = Json::object();
  if (above) fits = what_fits(*pipeline, global, limit);
  if (limited) {
    document["memory_limit"] = limit;
    // A lower bound below the limit says nothing.
    document["within_limit"] = above || document["left_out"].empty() ? Json(!above) : Json();
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
