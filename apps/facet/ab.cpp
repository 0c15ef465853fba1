// facet ab: two or more configs against each other, on the same requests, in one process.
#include <fstream>

#include "ab_report.h"
#include "facet/base/log.h"

namespace facet::cli {
namespace {

void write_document(const std::string& file, const Json& document) {
  std::ofstream out(file);
  out << document.dump(2) << '\n';
  out.close();
  if (!out) throw_error(ErrorKind::run, "{}: cannot be written; give --out a file in a folder that exists", file);
}

void ab(const AbOptions& options, const GlobalOptions& global) {
  std::vector<AbVariant> variants = plan_variants(options, global);
  const std::vector<std::size_t> order = measure_variants(variants, options);
  require_activation(variants);
  const Json document = ab_json(variants, order, options);
  if (!options.out.empty()) write_document(options.out, document);
  if (global.json) {
    print_json(document);
  } else {
    print_ab(document);
  }
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
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100000}))
      ->capture_default_str();
  command->add_option("--warmup", options->warmup, "Rounds before them that are not counted")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1000}))
      ->capture_default_str();
  command->add_option("--max-tokens", options->max_tokens, "Tokens to generate at most where a request does not say")
      ->capture_default_str();
  command->add_flag("--chat", options->chat, "Put text prompts into the chat format as the user's turn");
  command->add_flag("--ignore-eos", options->ignore_eos, "Do not stop at the model's end tokens");
  command->add_flag("--no-nll", options->skip_nll, "Leave out the scoring round that compares log-likelihoods");
  command->add_option("--out", options->out, "Also write the JSON document to this file");
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    ab(*options, global);
  });
}

}  // namespace facet::cli
