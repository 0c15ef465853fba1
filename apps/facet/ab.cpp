// facet ab: two or more configs against each other, on the same requests, in one process.
#include <fstream>

#include "ab_report.h"
#include "facet/base/log.h"
#include "machine_load.h"
#include "memory_limit.h"
#include "request_file.h"

namespace facet::cli {
namespace {

void write_document(const std::string& file, const Json& document) {
  std::ofstream out(file);
  out << json_text(document) << '\n';
  out.close();
  if (!out) throw_error(ErrorKind::run, "{}: cannot be written; give --out a file in a folder that exists", file);
}

// Before hours of measuring: a file that cannot be written is noticed while nothing is lost.
void check_writable(const std::string& file) {
  namespace fs = std::filesystem;
  const fs::path path = file;
  std::error_code error;
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(parent, error))
    throw_error(ErrorKind::usage, "--out {}: {} is no folder; create it first", file, parent.string());
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) throw_error(ErrorKind::usage, "--out {}: is a folder; name a file in it", file);
  if (fs::exists(status) && !fs::is_regular_file(status)) return;  // opening a pipe would wait for its reader
  const bool linked = fs::is_symlink(fs::symlink_status(path, error));
  std::ofstream out(file, std::ios::app);
  if (!out) throw_error(ErrorKind::usage, "--out {}: cannot be opened for writing", file);
  out.close();
  if (!fs::exists(status) && !linked) fs::remove(path, error);
}

void ab(const AbOptions& options, const GlobalOptions& global) {
  if (!options.out.empty()) check_writable(options.out);
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
  if (!options.out.empty()) write_document(options.out, document);
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
