// facet ab: two or more configs against each other, on the same requests, in one process.
#include "ab_report.h"
#include "facet/base/log.h"
#include "machine_load.h"
#include "memory_limit.h"
#include "request_file.h"
#include "result_file.h"

namespace facet::cli {
namespace {

void ab(const AbOptions& options, const GlobalOptions& global) {
  if (!options.out.empty()) check_result_file("--out", options.out);
  std::vector<AbVariant> variants = plan_variants(options, global);
  const MachineLoad load = machine_load();
  warn_when_busy(load, "round; times and verdicts may contradict each other. Compare again when it is quiet");
  const std::vector<std::size_t> order = measure_variants(variants, options, global);
  require_activation(variants);
  Json document = ab_json(variants, order, options);
  add_machine_load(document, load);
  if (global.json) {
    print_json(document);
  } else {
    print_ab(document);
  }
  if (!options.out.empty()) write_result_file("--out", options.out, json_text(document) + "\n");
}

}  // namespace

void add_ab(CLI::App& app, GlobalOptions& global) {
  CLI::App* command = app.add_subcommand("ab", "Compare configs on the same requests, with intervals and verdicts");
  auto options = std::make_shared<AbOptions>();
  command->add_option("configs", options->configs, "Two or more TOML files; the same file twice shows the noise")
      ->required()
      ->expected(2, 26);
  command->add_option("--requests", options->requests, "File with one JSON request a line")->required();
  command->add_option("--rounds", options->rounds, "Measured rounds; one round gives no interval")
      ->transform(whole_number(1, 100000))
      ->capture_default_str();
  command->add_option("--warmup", options->warmup, "Rounds before them that are not counted")
      ->transform(whole_number(0, 1000))
      ->capture_default_str();
  command->add_option("--max-tokens", options->max_tokens, "Tokens to generate at most where a request does not say")
      ->transform(whole_number(0, kMostTokens))
      ->capture_default_str();
  command->add_flag("--chat", options->chat, "Put text prompts into the chat format as the user's turn");
  command->add_flag("--ignore-eos", options->ignore_eos, "Do not stop at the model's end tokens");
  command->add_flag("--no-nll", options->skip_nll, "Leave out the scoring round that compares log-likelihoods");
  command->add_option("--out", options->out, "Also write the JSON document to this file")->check(not_empty());
  add_memory_limit_option(*command, global);
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    ab(*options, global);
  });
}

}  // namespace facet::cli
