// The command `facet`. Exit codes: 0 done, 1 run failed, 2 usage or config, 3 plugin or checkpoint refused.
#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>

#include "common.h"
#include "facet/base/log.h"
#include "facet/base/text.h"

namespace {

// Diagnostics that nobody can read are no failure of the run, so errors of stderr are ignored.
void complain(const std::string& text) {
  std::fputs(("facet: " + text + "\n").c_str(), stderr);
}

// CLI11 says only that a command is missing; the word that should be one is what the user looks for.
void explain_unknown_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-' || !app.get_subcommands().empty()) return;
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands(nullptr)) known.push_back(command->get_name());
  const std::string near = facet::nearest_name(argv[1], known);
  complain(fmt::format("unknown command '{}'{}; commands are {}", argv[1],
                       near.empty() ? "" : fmt::format("; did you mean '{}'?", near), fmt::join(known, ", ")));
}

// Descriptors 0 to 2 must be open, or a file of the run would take their place and be written to. A closed stdout
// becomes one that cannot be written, so that it is reported.
void keep_standard_descriptors() {
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) == -1) ::open("/dev/null", descriptor == 1 ? O_RDONLY : O_RDWR);
  }
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
    complain(fmt::format("{} error: {}", to_string(error.kind()), error.full_text()));
    return exit_code(error.kind());
  }
}

// A result that did not arrive is no result.
int flush_results(int code) {
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (written) return code;
  complain(fmt::format("run error: stdout cannot be written: {}", std::strerror(errno)));
  return code == 0 ? 1 : code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    keep_standard_descriptors();
    return flush_results(run_command(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "facet: %s\n", error.what());
  } catch (...) {
    std::fputs("facet: an exception of unknown type\n", stderr);
  }
  return 1;
}
