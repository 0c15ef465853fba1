// What every command shares: global options, a loaded pipeline, JSON output and progress.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "gemma4/pipeline.h"

namespace facet::cli {

using Json = nlohmann::ordered_json;

struct GlobalOptions {
  bool json = false;
  std::string log_level = "warn";
  std::vector<std::string> plugin_dirs;
  std::string memory_limit;  // see memory_limit.h; empty: none
};

// A command registers itself and runs when it was chosen. Errors leave it as Error.
using Command = void (*)(CLI::App& app, GlobalOptions& global);
void add_run(CLI::App& app, GlobalOptions& global);
void add_eval(CLI::App& app, GlobalOptions& global);
void add_tokenize(CLI::App& app, GlobalOptions& global);
void add_quantize(CLI::App& app, GlobalOptions& global);
void add_plugins(CLI::App& app, GlobalOptions& global);
void add_explain(CLI::App& app, GlobalOptions& global);
void add_plan(CLI::App& app, GlobalOptions& global);
void add_ab(CLI::App& app, GlobalOptions& global);
void add_bench(CLI::App& app, GlobalOptions& global);

// --json, --log-level and --plugin-dir on a subcommand.
void add_global_options(CLI::App& command, GlobalOptions& global);

// --plugin-dir, independent of the working directory.
std::vector<std::filesystem::path> absolute_plugin_dirs(const GlobalOptions& global);

// A line that is rewritten on a terminal and absent in a pipe. Writes to stderr.
class Progress {
 public:
  // every: elsewhere a line as often as that, for work of minutes; 0: none.
  explicit Progress(std::string what, std::chrono::seconds every = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(std::size_t done, std::size_t total);

 private:
  std::string what_;
  std::chrono::seconds every_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  bool terminal_;
  bool shown_ = false;
};

// One line on stderr for what a silent command does now, terminal or not.
void say_phase(std::string_view what);

// Plans the pipeline of a config file; with `load`, reads the weights too, showing progress.
std::unique_ptr<gemma4::Pipeline> open_pipeline(const std::string& config_file, const GlobalOptions& global, bool load,
                                                std::shared_ptr<gemma4::SharedParts> shared = nullptr);
std::unique_ptr<gemma4::Pipeline> open_pipeline(const Config& config, const GlobalOptions& global, bool load,
                                                std::shared_ptr<gemma4::SharedParts> shared = nullptr);
// The plan alone, where the device of the config is not here too.
std::unique_ptr<gemma4::Pipeline> open_plan(const std::string& config_file, const GlobalOptions& global);
// Reads the weights, unless the plan is above what check_memory_limit() allows.
void load_weights(gemma4::Pipeline& pipeline, const GlobalOptions& global,
                  const std::string& title = "loading weights");

// Runs `load` and adds to errors about the checkpoint which line of the config named it, and how.
template <typename Load>
auto load_model_of(const Config& config, Load load) {
  try {
    return load();
  } catch (Error& error) {
    if (error.kind() == ErrorKind::checkpoint && !config.model.written.empty())
      error.add_context(
          fmt::format("{}:{}: model.path = \"{}\"", config.file.string(), config.model.line, config.model.written));
    throw;
  }
}

// One JSON document on stdout.
void print_json(const Json& document);
// Whether print_json() was called. A command that fails after it has put the failure into its document; another
// document would spoil the first.
bool json_printed();
std::string json_text(const Json& document);

// Resolved TOML, plugin files with versions and hashes, device, checkpoint hash: what is needed to run it again.
Json run_record(gemma4::Pipeline& pipeline);
Json plugin_use_json(const std::vector<PluginUse>& uses);
Json memory_json(const MemoryPlan& plan);
// {"p50":..,"p90":..,"p99":..} by linear interpolation; null for no values.
Json percentiles_json(std::vector<double> values);

// Throws Error(usage) when a folder lies where a file is wanted.
void require_file(const std::filesystem::path& file);
// Token ids, one JSON array a line; empty lines are skipped. Errors name file and line.
std::vector<std::vector<std::int32_t>> read_token_lines(const std::filesystem::path& file);
// One JSON object a line, with its line number.
struct JsonLine {
  int line = 0;
  nlohmann::json object;
};
std::vector<JsonLine> read_json_lines(const std::filesystem::path& file);

}  // namespace facet::cli
