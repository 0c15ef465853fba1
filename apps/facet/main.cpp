// The command `facet`. Exit codes: 0 done, 1 run failed, 2 usage or config, 3 plugin or checkpoint refused.
#include <cstdio>
#include <exception>

#include "common.h"
#include "facet/base/log.h"
#include "facet/base/text.h"

namespace {

// CLI11 says only that a command is missing; the word that should be one is what the user looks for.
void explain_unknown_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-' || !app.get_subcommands().empty()) return;
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands(nullptr)) known.push_back(command->get_name());
  const std::string near = facet::nearest_name(argv[1], known);
  fmt::print(stderr, "facet: unknown command '{}'{}; commands are {}\n", argv[1],
             near.empty() ? "" : fmt::format("; did you mean '{}'?", near), fmt::join(known, ", "));
}

int run_command(int argc, char** argv) {
  using namespace facet;
  CLI::App app{"Facet: plugin-based inference for Gemma 4 in INT4"};
  app.set_version_flag("--version", FACET_VERSION);
  app.require_subcommand(1);
  cli::GlobalOptions global;
  for (const cli::Command add : {cli::add_run, cli::add_eval, cli::add_tokenize, cli::add_quantize, cli::add_plugins,
                                 cli::add_explain, cli::add_plan, cli::add_ab, cli::add_bench})
    add(app, global);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) explain_unknown_command(app, argc, argv);
    return app.exit(error) == 0 ? 0 : exit_code(ErrorKind::usage);
  } catch (const Error& error) {
    fmt::print(stderr, "facet: {} error: {}\n", to_string(error.kind()), error.full_text());
    return exit_code(error.kind());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_command(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "facet: %s\n", error.what());
  } catch (...) {
    std::fputs("facet: an exception of unknown type\n", stderr);
  }
  return 1;
}
