#include "facet/engine/plugin_choice.h"

#include <set>
#include <system_error>

#include "config/report.h"

namespace facet {
namespace {

std::string place_of(const Config& config, const Candidate& candidate) {
  return config::place(config.file.string(), candidate.line, candidate.key_path);
}

const LoadedPlugin& load(const Config& config, PluginRegistry& registry, abi::PluginKind kind,
                         const Candidate& candidate) {
  try {
    return registry.load(kind, candidate.name, config.file.parent_path());
  } catch (const Error& error) {
    throw at_place(config, candidate, error);
  }
}

OptionSet options_of(const Config& config, const LoadedPlugin& loaded, const PluginChoice& choice,
                     const Candidate& candidate, Problems& problems) {
  PluginChoice used = choice;
  if (!candidate.with_options) used.options.clear();
  return resolve_options(*loaded.descriptor, used, config.file.string(), problems);
}

// What check_choices() finds, in the order of the lines; groups that share a table share its mistakes.
class Mistakes {
 public:
  void add(ErrorKind kind, int line, const std::string& text) {
    if (kind == ErrorKind::config) kind_ = kind;
    texts_.insert({line, text});
  }

  void throw_if_any(const std::string& file) const {
    if (texts_.empty()) return;
    if (texts_.size() == 1) throw Error(kind_, texts_.begin()->second);
    Problems problems;
    for (const auto& entry : texts_) problems.add("{}", entry.second);
    problems.throw_if_any(kind_, fmt::format("{}: {} mistakes in the choice of plugins", file, texts_.size()));
  }

 private:
  ErrorKind kind_ = ErrorKind::plugin;
  std::set<std::pair<int, std::string>> texts_;
};

void check_folders(const Config& config, Mistakes& mistakes) {
  for (std::size_t i = 0; i < config.plugin_paths.size(); ++i) {
    const std::filesystem::path& folder = config.plugin_paths[i];
    std::error_code ignored;
    if (std::filesystem::is_directory(folder, ignored)) continue;
    mistakes.add(
        ErrorKind::config, config.plugin_paths_line,
        fmt::format("{}'{}' is {}; name a folder with plugins, or leave it out",
                    config::place(config.file.string(), config.plugin_paths_line, fmt::format("plugins.path[{}]", i)),
                    folder.string(), std::filesystem::exists(folder, ignored) ? "no folder" : "not there"));
  }
}

void check_choice(const Config& config, PluginRegistry& registry, abi::PluginKind kind, const PluginChoice& choice,
                  Mistakes& mistakes) {
  for (const Candidate& candidate : candidates(choice)) {
    try {
      Problems wrong;
      options_of(config, load(config, registry, kind, candidate), choice, candidate, wrong);
      for (const std::string& line : wrong.lines()) mistakes.add(ErrorKind::config, candidate.line, line);
    } catch (const Error& error) {
      mistakes.add(error.kind(), candidate.line, error.message());
    }
  }
}

}  // namespace

std::vector<Candidate> candidates(const PluginChoice& choice) {
  std::vector<Candidate> list = {{choice.plugin, true, choice.line, choice.key_path + ".plugin"}};
  for (std::size_t i = 0; i < choice.fallback.size(); ++i)
    list.push_back({choice.fallback[i], false, choice.fallback_line, fmt::format("{}[{}]", choice.fallback_path, i)});
  return list;
}

Error at_place(const Config& config, const Candidate& candidate, const Error& error) {
  Error placed(error.kind(), place_of(config, candidate) + error.message());
  for (const std::string& context : error.context()) placed.add_context(context);
  return placed;
}

void check_choices(const Config& config, PluginRegistry& registry) {
  Mistakes mistakes;
  check_folders(config, mistakes);
  for (const LinearRule& rule : config.linear)
    check_choice(config, registry, abi::PluginKind::linear, rule.choice, mistakes);
  for (const PluginChoice* choice : {&config.attention_sliding, &config.attention_global})
    check_choice(config, registry, abi::PluginKind::attention, *choice, mistakes);
  for (const PluginChoice* choice : {&config.kv_sliding, &config.kv_global})
    check_choice(config, registry, abi::PluginKind::kv_cache, *choice, mistakes);
  check_choice(config, registry, abi::PluginKind::scheduler, config.scheduler, mistakes);
  mistakes.throw_if_any(config.file.string());
}

ResolvedPlugin resolve_plugin(const Config& config, PluginRegistry& registry, abi::PluginKind kind,
                              const PluginChoice& choice, const Candidate& candidate) {
  const LoadedPlugin& loaded = load(config, registry, kind, candidate);
  Problems problems;
  OptionSet options = options_of(config, loaded, choice, candidate, problems);
  problems.throw_if_any(ErrorKind::config, fmt::format("{}: wrong options", config.file.string()));
  return {loaded, std::move(options)};
}

std::string refusals_text(const std::vector<Refusal>& refused) {
  std::string text;
  for (const Refusal& refusal : refused) text += fmt::format("\n  {}: {}", refusal.plugin, refusal.reasons);
  return text;
}

}  // namespace facet
