#include <algorithm>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include "config/paths.h"
#include "config/table_reader.h"
#include "config/toml_library.h"
#include "config/tuning.h"
#include "facet/base/limits.h"
#include "facet/config/config.h"

namespace facet {
namespace {

namespace fs = std::filesystem;
using config::Report;
using config::TableReader;

// Upper limits are far above any machine and keep products of two of them within int64.
constexpr std::int64_t kMaxSequences = 1 << 20;
constexpr std::int64_t kMaxTokens = 1 << 24;
constexpr std::int64_t kMaxRows = std::numeric_limits<std::int64_t>::max();
// The library recurses over nested tables; a dotted key of 100,000 parts would end on the guard page of the stack.
constexpr std::ptrdiff_t kMaxDotsInLine = 64;

void refuse_deep_keys(std::string_view text, const std::string& name) {
  int line = 1;
  for (std::size_t begin = 0; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view content = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t first = content.find_first_not_of(" \t");
    if (first == std::string_view::npos || content[first] == '#') continue;
    const std::ptrdiff_t dots = std::count(content.begin(), content.end(), '.');
    if (dots > kMaxDotsInLine) {
      throw_error(ErrorKind::config, "{}:{}: the line has {} dots, at most {} are allowed; break it into several lines",
                  name, line, dots, kMaxDotsInLine);
    }
  }
}

toml::table parse_toml(std::string_view text, const std::string& name) {
  refuse_deep_keys(text, name);
  try {
    return toml::parse(text, std::string_view(name));
  } catch (const toml::parse_error& error) {
    const toml::source_position& at = error.source().begin;
    throw_error(ErrorKind::config, "{}:{}:{}: not valid TOML: {}", name, at.line, at.column, error.description());
  } catch (const config::TomlInvariant& error) {
    throw_error(ErrorKind::config, "{}: not valid TOML: the parser stopped at its check '{}'", name, error.what());
  }
}

// One table that names a plugin; `plugin` stays empty where the file gives none.
PluginChoice read_choice(const TableReader& table) {
  PluginChoice choice;
  choice.plugin = table.text("plugin", "");
  choice.options = table.options("options");
  choice.fallback = table.texts("fallback");
  choice.line = table.line_of("plugin");
  choice.key_path = table.path();
  choice.fallback_line = table.line_of("fallback");
  choice.fallback_path = table.path_of("fallback");
  std::vector<std::string> seen = {choice.plugin};
  for (const std::string& name : choice.fallback) {
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
      table.error("fallback", fmt::format("plugin {} is tried twice; name each one once", config::in_quotes(name)));
    }
    seen.push_back(name);
  }
  return choice;
}

PluginChoice required_choice(const TableReader& table) {
  PluginChoice choice = read_choice(table);
  if (!table.has("plugin")) table.error("plugin", "missing; name the plugin that does this job");
  return choice;
}

void read_model(const TableReader& table, Config& config) {
  config.model.synthetic = table.text("synthetic", "");
  if (!table.has("path") && !table.has("synthetic"))
    table.error("path", "missing; name the folder of the checkpoint (or model.synthetic, a shape with random weights)");
  if (table.has("path") && table.has("synthetic"))
    table.error("synthetic", "given beside model.path; a model comes from one of them");
  config.model.written = table.text("path", "");
  config.model.line = table.line_of(table.has("path") ? "path" : "synthetic");
  if (!config.model.written.empty()) config.model.path = config::resolved(config.base, config.model.written);
  config.model.head = table.choice("head", config.model.head, {"checkpoint", "bf16", "int8", "int4"});
}

void read_engine(const TableReader& table, EngineConfig& engine) {
  engine.device = table.choice("device", engine.device, {"cpu", "cuda"});
  engine.max_sequences = table.integer("max_sequences", engine.max_sequences, 1, kMaxSequences);
  engine.max_context = table.integer("max_context", engine.max_context, 1, kMaxTokens);
  engine.max_step_tokens = table.integer("max_step_tokens", engine.max_step_tokens, 1, kMaxTokens);
  engine.prefill_chunk = table.integer("prefill_chunk", engine.prefill_chunk, 0, kMaxTokens);
  engine.threads = table.integer("threads", engine.threads, 0, kMostThreads);
  engine.cpu_isa = table.choice("cpu_isa", engine.cpu_isa, {"auto", "avx512", "avx2", "generic"});
  engine.kv_form = table.choice("kv_form", engine.kv_form, {"auto", "shared", "full"});
  if (engine.prefill_chunk > engine.max_step_tokens) {
    table.error("prefill_chunk", fmt::format("{} is more than max_step_tokens, {}; a chunk must fit into one step",
                                             engine.prefill_chunk, engine.max_step_tokens));
  }
}

std::vector<LinearRule> read_rules(const TableReader& table) {
  std::vector<LinearRule> linear;
  for (const TableReader& entry : table.tables("rules", "linear.rules")) {
    LinearRule rule;
    rule.layers = entry.text("layers", rule.layers);
    rule.min_rows = entry.integer("min_rows", rule.min_rows, 1, kMaxRows);
    rule.max_rows = entry.integer("max_rows", rule.max_rows, 0, kMaxRows);
    if (rule.max_rows != 0 && rule.max_rows < rule.min_rows) {
      entry.error("max_rows", fmt::format("{} is less than min_rows, {}; the rule would never match (0: no limit)",
                                          rule.max_rows, rule.min_rows));
    }
    rule.choice = required_choice(entry);
    linear.push_back(std::move(rule));
  }
  return linear;
}

void read_linear(const TableReader& table, Config& config) {
  config.linear = read_rules(table);
  if (table.has("tuning")) {
    config.tuning.line = table.line_of("tuning");
    if (const std::string file = table.text("tuning", ""); !file.empty())
      config.tuning.file = config::resolved(config.base, file);
  }
  LinearRule standard;
  standard.choice = required_choice(table);
  config.linear.push_back(std::move(standard));
}

// What a group runs with: its own plugin and nothing else, or the default with the group's options on top.
PluginChoice group_choice(const PluginChoice& standard, const std::optional<TableReader>& table) {
  if (!table) return standard;
  PluginChoice own = read_choice(*table);
  if (table->has("plugin")) return own;
  PluginChoice choice = standard;
  if (table->has("fallback")) {
    choice.fallback = own.fallback;
    choice.fallback_line = own.fallback_line;
    choice.fallback_path = own.fallback_path;
  }
  for (OptionEntry& entry : own.options) {
    const auto same = std::find_if(choice.options.begin(), choice.options.end(),
                                   [&entry](const OptionEntry& other) { return other.name == entry.name; });
    if (same != choice.options.end()) {
      *same = std::move(entry);
    } else {
      choice.options.push_back(std::move(entry));
    }
  }
  std::sort(choice.options.begin(), choice.options.end(),
            [](const OptionEntry& a, const OptionEntry& b) { return a.name < b.name; });
  return choice;
}

void read_groups(const TableReader& table, PluginChoice& sliding, PluginChoice& global) {
  const PluginChoice standard = read_choice(table);
  const auto sliding_table = table.table("sliding", table.path() + ".sliding");
  const auto global_table = table.table("global", table.path() + ".global");
  sliding = group_choice(standard, sliding_table);
  global = group_choice(standard, global_table);
  const bool own_sliding = sliding_table && sliding_table->has("plugin");
  const bool own_global = global_table && global_table->has("plugin");
  if (!table.has("plugin") && !own_sliding && !own_global) {
    table.error("plugin", fmt::format("missing; name a plugin here, or one each in [{0}.sliding] and [{0}.global]",
                                      table.path()));
  } else if (!table.has("plugin") && !(own_sliding && own_global)) {
    const std::string missing = table.path() + (own_sliding ? ".global" : ".sliding");
    table.error(own_sliding ? "global" : "sliding",
                fmt::format("plugin missing; name one in [{}], or one for both groups in [{}]", missing, table.path()));
  }
  for (const char* key : {"plugin", "options", "fallback"}) {
    if (own_sliding && own_global && table.has(key)) {
      table.error(key, fmt::format("has no effect: [{0}.sliding] and [{0}.global] both name their own plugin; move it "
                                   "there",
                                   table.path()));
    }
  }
}

void read_plugins(const TableReader& table, Config& config) {
  config.plugin_paths_line = table.line_of("path");
  for (const std::string& path : table.texts("path")) {
    config.plugin_paths.push_back(config::resolved(config.base, path));
  }
}

void read_root(Report& report, const toml::table& root, Config& config) {
  const toml::table empty;
  const TableReader file(report, root, "", "");
  // An absent table reads as an empty one, so that everything it lacks is reported.
  const auto section = [&](std::string_view key) {
    std::optional<TableReader> table = file.table(key, key);
    if (table || file.has(key)) return table;
    return std::optional<TableReader>(TableReader(report, empty, std::string(key), key));
  };
  if (const auto table = section("model")) read_model(*table, config);
  if (const auto table = section("engine")) {
    read_engine(*table, config.engine);
    if (table->has("device")) config.device_line = table->line_of("device");
  }
  if (const auto table = section("linear")) read_linear(*table, config);
  if (const auto table = section("attention")) read_groups(*table, config.attention_sliding, config.attention_global);
  if (const auto table = section("kv_cache")) read_groups(*table, config.kv_sliding, config.kv_global);
  if (const auto table = section("scheduler")) config.scheduler = required_choice(*table);
  if (const auto table = section("plugins")) read_plugins(*table, config);
}

// A file that was cut between two rules is valid TOML.
void check_rule_count(const TableReader& tuning, std::size_t found) {
  constexpr const char* kCure = "measure again with 'facet bench --tune FILE', or set it to the number of rules";
  if (!tuning.has("rules")) {
    tuning.error("rules", fmt::format("missing: it says how many rules the file has, so that a file that was cut is "
                                      "noticed; {}",
                                      kCure));
    return;
  }
  const std::int64_t said = tuning.integer("rules", 0, 1, std::numeric_limits<std::int64_t>::max());
  if (said > 0 && std::cmp_not_equal(said, found))
    tuning.error("rules", fmt::format("is {}, the file has {}; {}", said, found, kCure));
}

}  // namespace

fs::path config::resolved(const fs::path& base, const fs::path& path) {
  if (path.is_absolute()) return path;
  fs::path result = base;
  bool leading = true;
  for (const fs::path& part : path) {
    if (part.empty() || part == ".") continue;
    if (part == ".." && leading) {
      result = result.parent_path();
    } else {
      leading = false;
      result /= part;
    }
  }
  return result;
}

bool is_plugin_path(std::string_view plugin) {
  return plugin.find('/') != std::string_view::npos || plugin.ends_with(".so");
}

fs::path plugin_file(const Config& config, std::string_view plugin) {
  return config::resolved(config.base, fs::path(plugin));
}

void config::add_tuned_rules(std::string_view text, Config& config) {
  const std::string name = config.tuning.file.string();
  const toml::table root = parse_toml(text, name);
  Report report(name);
  const TableReader file(report, root, "", "tuning file");
  const std::optional<TableReader> tuning = file.table("tuning", "tuning"),
                                   linear = file.table("linear", "tuned linear");
  if (tuning) config.tuning.device = tuning->text("device", "");
  if (!tuning || !tuning->has("device"))
    report.add(1, "tuning.device", "missing; 'facet bench --tune FILE' writes a tuning file, with the device's name");
  std::vector<LinearRule> rules = linear ? read_rules(*linear) : std::vector<LinearRule>();
  if (rules.empty()) report.add(1, "linear.rules", "missing; a tuning file has at least one rule");
  if (tuning) check_rule_count(*tuning, rules.size());
  report.throw_if_any();
  for (LinearRule& rule : rules) {
    // Whatever is wrong with a rule later on is found by the key that brought it in, and by its own place.
    const auto bring_in = [&config](int& line, std::string& key_path) {
      key_path = fmt::format("linear.tuning {}:{} {}", config.tuning.file.filename().string(), line, key_path);
      line = config.tuning.line;
    };
    bring_in(rule.choice.line, rule.choice.key_path);
    bring_in(rule.choice.fallback_line, rule.choice.fallback_path);
    for (OptionEntry& option : rule.choice.options) bring_in(option.line, option.key_path);
  }
  config.tuning.rules = rules.size();
  config.linear.insert(config.linear.begin(), std::make_move_iterator(rules.begin()),
                       std::make_move_iterator(rules.end()));
}

Config parse_config(std::string_view text, const std::string& name, const fs::path& base) {
  const toml::table root = parse_toml(text, name);
  Config config;
  std::error_code ignored;
  config.base = fs::absolute(base, ignored).lexically_normal();
  if (!config.base.has_filename()) config.base = config.base.parent_path();  // "/x/" to "/x", "/" stays
  Report report(name);
  read_root(report, root, config);
  report.throw_if_any();
  return config;
}

}  // namespace facet
