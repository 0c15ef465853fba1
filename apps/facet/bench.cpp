// facet bench: prefill and decode speed of a pipeline, beside what the memory of the machine can do.
#include "bench_config.h"
#include "bench_measure.h"
#include "bench_report.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "machine_load.h"
#include "memory_limit.h"
#include "request_file.h"
#include "tune.h"

namespace facet::cli {
namespace {

constexpr const char* kWhenBusy = "measurement; times are longer and spread more. Measure again when it is quiet";

std::unique_ptr<Bench> open_bench(const BenchOptions& options, const GlobalOptions& global) {
  const Config config = bench_config(options);
  try {
    return std::make_unique<Bench>(options, open_pipeline(config, global, false), global);
  } catch (const Error& error) {
    throw in_words_of(options, error);
  }
}

// A list of whole numbers; its defaults are shown by the help.
void add_list(CLI::App& command, const char* name, const char* help, std::vector<std::int64_t>& values) {
  command.add_option_function<std::vector<std::string>>(name, whole_number_list(name, 1, kMostTokens, values), help)
      ->type_name("N,..")
      ->default_str(fmt::format("{}", fmt::join(values, ",")));
}

void bench_tune(const BenchOptions& options, const GlobalOptions& global) {
  const Config config = bench_config(options);
  Json document;
  try {
    const auto pipeline = open_pipeline(config, global, false);
    check_memory_limit(*pipeline, global);
    const MachineLoad load = machine_load();
    warn_when_busy(load, kWhenBusy);
    document = tune(*pipeline, options.tune, options.repeat);
    add_machine_load(document, load);
  } catch (const Error& error) {
    throw in_words_of(options, error);
  }
  if (global.json) {
    print_json(document);
  } else {
    print_tuning(document);
  }
}

void bench(const BenchOptions& options, const GlobalOptions& global) {
  if (!options.tune.empty()) return bench_tune(options, global);
  const std::unique_ptr<Bench> opened = open_bench(options, global);
  Bench& machine = *opened;
  const MachineLoad load = machine_load();
  warn_when_busy(load, kWhenBusy);
  std::vector<double> bandwidth = machine.read_rates();
  for (double& value : bandwidth) value /= 1e9;
  Json limit = {
      {"threads", machine.on_cpu() ? Json(machine.pipeline().shared()->services->table()->worker_count) : Json()},
      {"bytes", machine.read_rate_bytes()},
      {"gb_per_s", spread_json(bandwidth)}};
  std::vector<double> products = machine.multiply_rates();
  for (double& value : products) value /= 1e12;
  Json document = {{"repeat", options.repeat},
                   {"seed", options.seed},
                   {"read_bandwidth", bandwidth.empty() ? Json() : std::move(limit)},
                   {"bf16_tflop_per_s", spread_json(products)},
                   {"runs", Json::array()}};
  add_machine_load(document, load);
  const std::vector<BenchShape> shapes = machine.shapes();
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const BenchShape& shape = shapes[i];
    say_phase(fmt::format("bench: {} of {}, batch {}, prompts of {} tokens, {} generated, {} repeats after one", i + 1,
                          shapes.size(), shape.batch, shape.prompt, shape.generate, options.repeat));
    document["runs"].push_back(
        bench_shape_json(shape, machine.measure(shape), machine.weight_bytes(shape.batch), bandwidth));
    if (options.profile) document["runs"].back()["profile"] = machine.profile(shape);
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
  command->add_option("config", options->config, "TOML file; not needed with --synthetic");
  command->add_option("--synthetic", options->synthetic,
                      "Random weights in the shape of a model (gemma4-12b) in place of the config's; without a config, "
                      "with the plugins that serve it best on the device and room for what is measured");
  command->add_option("--device", options->device, "In place of engine.device")->check(CLI::IsMember({"cpu", "cuda"}));
  add_list(*command, "--prompt-tokens", "Lengths of prompts, separated by commas", options->prompt_tokens);
  add_list(*command, "--generate", "Tokens to generate; 1: no decode is measured", options->generate);
  add_list(*command, "--batch", "Sequences at the same time", options->batch);
  command
      ->add_option("--repeat", options->repeat, "Measured repeats of each combination, after one that is not counted")
      ->transform(whole_number(1, 100000))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the token ids")
      ->transform(whole_number(0, UINT64_MAX))
      ->capture_default_str();
  command->add_flag("--profile", options->profile, "Trace one more run of each: time by kernel (CUDA)");
  command
      ->add_option("--tune", options->tune,
                   "Measure the linear plugins of the configuration on the model's matrices by row count instead, and "
                   "write the rules to this file, for linear.tuning")
      ->check(not_empty());
  add_memory_limit_option(*command, global);
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    bench(*options, global);
  });
}

}  // namespace facet::cli
