// The command `facet`. Exit codes: 0 done, 1 run failed, 2 usage or config, 3 plugin or checkpoint refused.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>

#include "common.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "facet/checkpoint/mapping_fault.h"

namespace {

// Diagnostics that nobody can read are no failure of the run, so errors of stderr are ignored.
void complain(const std::string& text) {
  std::fputs(("facet: " + text + "\n").c_str(), stderr);
}

// A command line that was refused has set no option yet, so the words are looked at.
bool wants_json(int argc, char** argv) {
  for (int i = 1; i < argc && std::strcmp(argv[i], "--") != 0; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) return true;
  }
  return false;
}

// A script that asked for JSON finds the failure where it looks for the result.
void print_failure(facet::ErrorKind kind, const std::string& text) {
  if (facet::cli::json_printed()) return;
  facet::cli::print_json({{"error", {{"kind", facet::to_string(kind)}, {"text", text}}}});
}

// CLI11 says only that a command is missing; the word that should be one is what the user looks for.
std::string unknown_command_text(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands(nullptr)) known.push_back(command->get_name());
  const std::string near = facet::nearest_name(word, known);
  return fmt::format("unknown command '{}'{}; commands are {}", word,
                     near.empty() ? "" : fmt::format("; did you mean '{}'?", near), fmt::join(known, ", "));
}

// The command that the words chose, as deep as they go: `facet plugins describe`.
const CLI::App& chosen_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::string help_text(const CLI::App& app) {
  std::string words;
  for (const CLI::App* command = &chosen_command(app); command != &app; command = command->get_parent())
    words.insert(0, command->get_name() + " ");
  return fmt::format("`facet {}--help` shows what it takes", words);
}

// CLI11 lists what is left over from the last to the first and suggests nothing. The first unknown option counts: words
// behind it may be its values.
std::string leftover_text(const CLI::App& app) {
  const CLI::App* command = &chosen_command(app);
  const std::vector<std::string> words = app.remaining(true);
  const auto option = std::find_if(words.begin(), words.end(),
                                   [](const std::string& word) { return word.size() > 1 && word[0] == '-'; });
  const std::string help = help_text(app);
  if (option == words.end()) return fmt::format("'{}' is one argument too many; {}", fmt::join(words, " "), help);
  const std::string name = option->substr(0, option->find('='));
  std::vector<std::string> known;
  for (const CLI::Option* other : command->get_options()) {
    for (const std::string& long_name : other->get_lnames()) known.push_back("--" + long_name);
  }
  const std::string near = facet::nearest_name(name, known);
  return fmt::format("unknown option '{}'{}; {}", name, near.empty() ? "" : fmt::format("; did you mean '{}'?", near),
                     help);
}

// A command that stands alone, as `facet` or `facet plugins`, where one of its own must follow.
std::string missing_command_text(const CLI::App& command) {
  std::vector<std::string> known;
  for (const CLI::App* own : command.get_subcommands(nullptr)) known.push_back(own->get_name());
  return fmt::format("a command is missing; commands are {}", fmt::join(known, ", "));
}

std::string usage_text(const CLI::App& app, const CLI::ParseError& error, const char* first_word) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) return leftover_text(app);
  if (first_word != nullptr && first_word[0] != '-' && app.get_subcommands().empty())
    return unknown_command_text(app, first_word);
  const CLI::App& command = chosen_command(app);
  const bool alone = !command.get_subcommands(nullptr).empty();
  const bool required = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  return fmt::format("{}; {}", alone && required ? missing_command_text(command) : error.what(), help_text(app));
}

int report_usage(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  using facet::ErrorKind;
  if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version
  const std::string text = usage_text(app, error, argc > 1 ? argv[1] : nullptr);
  complain("usage error: " + text);
  if (wants_json(argc, argv)) print_failure(ErrorKind::usage, text);
  return exit_code(ErrorKind::usage);
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
    return report_usage(app, error, argc, argv);
  } catch (const Error& error) {
    complain(fmt::format("{} error: {}", to_string(error.kind()), error.full_text()));
    if (wants_json(argc, argv)) print_failure(error.kind(), error.full_text());
    return exit_code(error.kind());
  } catch (const std::exception& error) {
    complain(error.what());
    if (wants_json(argc, argv)) print_failure(ErrorKind::run, error.what());
    return exit_code(ErrorKind::run);
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
    // Past the limit on file sizes a write then fails with an error, and what is half written is removed.
    std::signal(SIGXFSZ, SIG_IGN);
    facet::report_mapping_faults();
    return flush_results(run_command(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "facet: %s\n", error.what());
  } catch (...) {
    std::fputs("facet: an exception of unknown type\n", stderr);
  }
  return 1;
}
