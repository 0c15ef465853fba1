#include "common.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "facet/base/json_keys.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "facet/measure/percentiles.h"
#include "memory_limit.h"
#include "plan_json.h"
#include "quantize_weight.h"
#include "resolved_config.h"

namespace facet::cli {
namespace {

// The library's text without its own name, number and a line that is always 1.
std::string json_mistake(const nlohmann::json::exception& error) {
  std::string text = error.what();
  for (const char* end : {"] ", "parse error at line 1, "}) {
    const std::size_t at = text.find(end);
    if (at != std::string::npos) text.erase(0, at + std::strlen(end));
  }
  return text;
}

// stdout is one for the process, and so is this.
bool printed = false;

}  // namespace

void add_global_options(CLI::App& command, GlobalOptions& global) {
  command.add_flag("--json", global.json, "Print one JSON document on stdout");
  command.add_option("--log-level", global.log_level, "trace, debug, info, warn, error or off")->capture_default_str();
  command
      .add_option("--plugin-dir", global.plugin_dirs,
                  "Directory to search for plugins, before FACET_PLUGIN_PATH; may be repeated")
      ->check(CLI::ExistingDirectory);
}

std::vector<std::filesystem::path> absolute_plugin_dirs(const GlobalOptions& global) {
  std::vector<std::filesystem::path> directories;
  for (const std::string& directory : global.plugin_dirs) directories.push_back(std::filesystem::absolute(directory));
  return directories;
}

Progress::Progress(std::string what, std::chrono::seconds every)
    : what_(std::move(what)), every_(every), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::update(std::size_t done, std::size_t total) {
  if (!terminal_) {
    const auto now = std::chrono::steady_clock::now();
    if (every_.count() == 0 || now - last_ < every_) return;
    last_ = now;
    fmt::print(stderr, "{} {}/{}\n", what_, done, total);
    return;
  }
  shown_ = true;
  std::fputs(fmt::format("\r\033[K{} {}/{}", what_, done, total).c_str(), stderr);
  std::fflush(stderr);
}

void say_phase(std::string_view what) {
  fmt::print(stderr, "{}\n", what);
}

std::unique_ptr<gemma4::Pipeline> open_pipeline(const std::string& config_file, const GlobalOptions& global, bool load,
                                                std::shared_ptr<gemma4::SharedParts> shared) {
  return open_pipeline(load_config(config_file), global, load, std::move(shared));
}

namespace {

std::unique_ptr<gemma4::Pipeline> planned_pipeline(const Config& config, gemma4::PipelineOptions options,
                                                   std::shared_ptr<gemma4::SharedParts> shared) {
  std::unique_ptr<gemma4::Pipeline> pipeline;
  try {
    pipeline = load_model_of(
        config, [&] { return std::make_unique<gemma4::Pipeline>(config, std::move(options), std::move(shared)); });
  } catch (Error& error) {
    if (error.message().starts_with("engine.device:"))
      error.add_context(
          fmt::format("{}:{}: engine.device = \"{}\"", config.file.string(), config.device_line, config.engine.device));
    throw;
  }
  log(LogLevel::info, "resolved config:\n{}", to_toml(pipeline->config()));
  return pipeline;
}

}  // namespace

std::unique_ptr<gemma4::Pipeline> open_plan(const std::string& config_file, const GlobalOptions& global) {
  gemma4::PipelineOptions options;
  options.plugin_dirs = absolute_plugin_dirs(global);
  options.only_plan = true;
  return planned_pipeline(load_config(config_file), std::move(options), nullptr);
}

std::unique_ptr<gemma4::Pipeline> open_pipeline(const Config& config, const GlobalOptions& global, bool load,
                                                std::shared_ptr<gemma4::SharedParts> shared) {
  gemma4::PipelineOptions options;
  options.plugin_dirs = absolute_plugin_dirs(global);
  options.quantize = quantize_weight;
  std::unique_ptr<gemma4::Pipeline> pipeline = planned_pipeline(config, std::move(options), std::move(shared));
  if (load) load_weights(*pipeline, global);
  return pipeline;
}

void load_weights(gemma4::Pipeline& pipeline, const GlobalOptions& global, const std::string& title) {
  check_memory_limit(pipeline, global);
  Progress progress(title);
  pipeline.load([&](std::size_t done, std::size_t total) { progress.update(done, total); });
}

std::string json_text(const Json& document) {
  // Paths and texts of plugins may hold any bytes; what is not UTF-8 becomes U+FFFD instead of losing the document.
  return document.dump(2, ' ', false, Json::error_handler_t::replace);
}

void print_json(const Json& document) {
  const std::string text = json_text(document);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
  printed = true;
}

bool json_printed() {
  return printed;
}

Json plugin_use_json(const std::vector<PluginUse>& uses) {
  Json list = Json::array();
  for (const PluginUse& use : uses) {
    list.push_back({{"place", use.place},
                    {"kind", use.kind},
                    {"name", use.name},
                    {"version", use.version},
                    {"options", use.options},
                    {"file", use.file},
                    {"file_hash", fmt::format("{:016x}", use.file_hash)},
                    {"calls", use.calls},
                    {"seconds", static_cast<double>(use.nanoseconds) / 1e9}});
  }
  return list;
}

Json memory_json(const MemoryPlan& plan) {
  return {{"weights", plan.weights},
          {"weights_unpacked", plan.weights_unpacked},
          {"weights_mapped", plan.weights_mapped},
          {"kv_sliding", plan.kv_sliding},
          {"kv_global", plan.kv_global},
          {"workspace", plan.workspace},
          {"activations", plan.activations},
          {"allocated", plan.allocated()},
          {"sequences_that_fit", plan.sequences_that_fit}};
}

Json run_record(gemma4::Pipeline& pipeline) {
  const gemma4::SharedParts& shared = *pipeline.shared();
  return {{"facet_version", FACET_VERSION},
          {"config", to_toml(with_option_defaults(pipeline))},
          {"config_file", pipeline.config().file.string()},
          {"device", shared.backend->description()},
          {"cpu_features", describe_cpu_features(shared.services->table()->cpu_features)},
          {"threads", shared.services->table()->worker_count},
          {"checkpoint", shared.source->description()},
          {"checkpoint_hash", fmt::format("{:016x}", shared.source->content_hash())},
          {"plugins", plugin_use_json(pipeline.plugin_use())},
          {"kv_forms", kv_forms_json(pipeline)},
          {"memory", memory_json(pipeline.memory())}};
}

Json percentiles_json(std::vector<double> values) {
  const std::optional<Percentiles> points = percentiles(std::move(values));
  if (!points) return nullptr;
  return {{"p50", points->p50}, {"p90", points->p90}, {"p99", points->p99}};
}

void require_file(const std::filesystem::path& file) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored))
    throw_error(ErrorKind::usage, "{}: is a folder; name a file in it", file.string());
}

std::vector<JsonLine> read_json_lines(const std::filesystem::path& file) {
  require_file(file);
  std::ifstream in(file);
  if (!in) throw_error(ErrorKind::usage, "{}: cannot be opened: {}", file.string(), std::strerror(errno));
  std::vector<JsonLine> lines;
  std::string text;
  for (int number = 1; std::getline(in, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (json_depth(text) > kMaxJsonDepth) {
      throw_error(ErrorKind::usage, "{}:{}: is nested {} deep; at most {} is read", file.string(), number,
                  json_depth(text), kMaxJsonDepth);
    }
    refuse_repeated_keys(text, ErrorKind::usage, fmt::format("{}:{}", file.string(), number));
    try {
      lines.push_back({number, nlohmann::json::parse(text)});
    } catch (const nlohmann::json::exception& error) {
      throw_error(ErrorKind::usage, "{}:{}: not valid JSON: {}", file.string(), number, json_mistake(error));
    }
  }
  if (in.bad()) throw_error(ErrorKind::usage, "{}: cannot be read: {}", file.string(), std::strerror(errno));
  return lines;
}

std::vector<std::vector<std::int32_t>> read_token_lines(const std::filesystem::path& file) {
  std::vector<std::vector<std::int32_t>> sequences;
  for (const JsonLine& line : read_json_lines(file)) {
    const auto is_id = [](const nlohmann::json& value) {
      return value.is_number_integer() && value.get<std::int64_t>() >= 0 && value.get<std::int64_t>() <= INT32_MAX;
    };
    if (!line.object.is_array() || !std::all_of(line.object.begin(), line.object.end(), is_id)) {
      throw_error(ErrorKind::usage, "{}:{}: expected a JSON array of token ids (whole numbers from 0)", file.string(),
                  line.line);
    }
    sequences.push_back(line.object.get<std::vector<std::int32_t>>());
  }
  if (sequences.empty()) throw_error(ErrorKind::usage, "{}: holds no sequence", file.string());
  return sequences;
}

}  // namespace facet::cli
