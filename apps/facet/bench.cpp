// facet bench: prefill and decode speed of a pipeline, beside what the memory of the machine can do.
#include "bench_config.h"
#include "bench_measure.h"
#include "bench_report.h"
#include "facet/base/log.h"
#include "memory_limit.h"
#include "request_file.h"

namespace facet::cli {
namespace {

void bench(const BenchOptions& options, const GlobalOptions& global) {
  Bench machine(options, open_pipeline(bench_config(options), global, false), global);
  std::vector<double> bandwidth = machine.read_rates();
  for (double& value : bandwidth) value /= 1e9;
  Json limit = {
      {"threads", machine.on_cpu() ? Json(machine.pipeline().shared()->services->table()->worker_count) : Json()},
      {"bytes", machine.read_rate_bytes()},
      {"gb_per_s", spread_json(bandwidth)}};
  Json document = {{"repeat", options.repeat},
                   {"seed", options.seed},
                   {"read_bandwidth", bandwidth.empty() ? Json() : std::move(limit)},
                   {"runs", Json::array()}};
  const std::vector<BenchShape> shapes = machine.shapes();
  {
    Progress progress("measuring");
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      progress.update(i, shapes.size());
      document["runs"].push_back(
          bench_shape_json(shapes[i], machine.measure(shapes[i]), machine.weight_bytes(shapes[i].batch), bandwidth));
      if (options.profile) document["runs"].back()["profile"] = machine.profile(shapes[i]);
    }
  }
  document["record"] = run_record(machine.pipeline());
  if (global.json) {
    print_json(document);
  } else {
    print_bench(document);
  }
}

}  // namespace

void add_bench(CLI::App& app, GlobalOptions& global) {
  CLI::App* command = app.add_subcommand("bench", "Prefill and decode speed with random tokens");
  auto options = std::make_shared<BenchOptions>();
  const CLI::Range positive(std::int64_t{1}, std::int64_t{1} << 31);
  command->add_option("config", options->config, "TOML file; not needed with --synthetic");
  command->add_option("--synthetic", options->synthetic,
                      "Random weights in the shape of a model (gemma4-12b) in place of the config's; without a config, "
                      "with the plugins that serve it best on the device and room for what is measured");
  command->add_option("--device", options->device, "In place of engine.device")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command->add_option("--prompt-tokens", options->prompt_tokens, "Lengths of prompts, separated by commas")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  command->add_option("--generate", options->generate, "Tokens to generate; 1: no decode is measured")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  command->add_option("--batch", options->batch, "Sequences at the same time")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  command
      ->add_option("--repeat", options->repeat, "Measured repeats of each combination, after one that is not counted")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100000}))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the token ids")
      ->transform(whole_number(0, UINT64_MAX))
      ->capture_default_str();
  command->add_flag("--profile", options->profile, "Trace one more run of each: time by kernel (CUDA)");
  add_memory_limit_option(*command, global);
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    bench(*options, global);
  });
}

}  // namespace facet::cli
