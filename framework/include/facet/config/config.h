// The TOML file as typed values. Every key is known or an error; every error carries file, line and key path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace facet {

using OptionData = std::variant<bool, std::int64_t, double, std::string>;

// One plugin option as the file says it; checked against the plugin's schema by resolve_options().
struct OptionEntry {
  std::string name;
  OptionData value;
  int line = 0;
  std::string key_path;  // "kv_cache.global.options.block_tokens"

  // Same name and value; where it was written does not count.
  bool operator==(const OptionEntry& other) const { return name == other.name && value == other.value; }
};

// Which plugin does a job. A plugin is a name ("flash") or a path ("./mine.so", relative to the config file).
struct PluginChoice {
  std::string plugin;
  std::vector<OptionEntry> options;
  // Taken in order, with default options, where `plugin` refuses; there is no other fallback anywhere.
  std::vector<std::string> fallback;
  int line = 0;
  std::string key_path;  // where the plugin is written: "attention.global", or "attention" when taken from there
  int fallback_line = 0;
  std::string fallback_path;  // where the fallback is written; a group may have it beside a plugin of the default

  // Same names and options; where it was written does not count.
  bool operator==(const PluginChoice& other) const {
    return plugin == other.plugin && options == other.options && fallback == other.fallback;
  }
};

// First rule that matches module and row count wins; the last rule is the default and matches everything.
struct LinearRule {
  std::string layers = "*";  // glob over module names without the model prefix: "layers.3.mlp.gate_proj", "lm_head"
  std::int64_t min_rows = 1;
  std::int64_t max_rows = 0;  // 0: no limit
  PluginChoice choice;

  bool operator==(const LinearRule&) const = default;
};

// Rules that `facet bench --tune` measured on one device; they come before those of the file.
struct LinearTuning {
  std::filesystem::path file;  // absolute; empty: none
  std::string device;          // as Backend::description() names it
  int line = 0;                // of linear.tuning in the config
  std::size_t rules = 0;       // how many it gave
};

struct ModelConfig {
  std::filesystem::path path;       // absolute after loading; empty for a synthetic model
  std::string synthetic;            // name of a shape with random weights, for measuring speed; instead of path
  std::string head = "checkpoint";  // checkpoint | bf16 | int8 | int4: format of the shared embedding and head table
  std::string written;              // `path` as the file says it
  int line = 0;                     // of `path` or `synthetic` in the file

  // `path` with symlinks walked, as far as it exists: one checkpoint has one such path, however files name it.
  std::filesystem::path real_path() const;

  // Same model and head; how and where the path was written does not count.
  bool operator==(const ModelConfig& other) const {
    return path == other.path && synthetic == other.synthetic && head == other.head;
  }
};

struct EngineConfig {
  std::string device = "cpu";          // cpu | cuda
  std::int64_t max_sequences = 8;      // running at the same time
  std::int64_t max_context = 4096;     // tokens of one sequence, prompt and generated
  std::int64_t max_step_tokens = 512;  // tokens of one step over all sequences
  std::int64_t prefill_chunk = 0;      // tokens of one sequence in one step; 0: max_step_tokens
  std::int64_t threads = 0;            // 0: all
  std::string cpu_isa = "auto";        // auto | avx512 | avx2 | generic
  std::string kv_form = "auto";        // auto | shared | full: rows of caches whose keys follow from their values

  bool operator==(const EngineConfig&) const = default;
};

struct Config {
  std::filesystem::path file;  // absolute, symlinks resolved; empty for text without a file
  std::filesystem::path base;  // folder that relative paths are taken from, absolute
  ModelConfig model;
  EngineConfig engine;
  int device_line = 0;             // of engine.device in the file; 0: not in it
  std::vector<LinearRule> linear;  // rules of the tuning file, rules of this one, then the default
  LinearTuning tuning;
  PluginChoice attention_sliding, attention_global;
  PluginChoice kv_sliding, kv_global;
  PluginChoice scheduler;
  std::vector<std::filesystem::path> plugin_paths;  // [plugins] path, absolute
  int plugin_paths_line = 0;

  // The same run: everything but where it was written; plugin paths are compared after resolving them.
  bool operator==(const Config& other) const;
};

// A plugin with a '/' in it or a ".so" at its end is a file, anything else a name.
bool is_plugin_path(std::string_view plugin);
// The file that a plugin path of this config means, absolute. The file need not exist.
std::filesystem::path plugin_file(const Config& config, std::string_view plugin);

// Groups: [attention] and [kv_cache] hold the default of both groups. A group table that names its own plugin takes
// nothing from the default; one that does not takes plugin and fallback from it, and options name by name.

// Reads and checks a file. Relative paths are taken from the folder of the file (of its real path for a symlink), never
// from the working directory. Throws Error(config) that lists all mistakes at once as "file:line: key.path: what,
// cure". Files above 1 MiB are refused.
Config load_config(const std::filesystem::path& file);
// The same for text, without touching the file system; `name` stands for the file in errors and `base` for its folder.
// A tuning file is named and not read.
Config parse_config(std::string_view text, const std::string& name, const std::filesystem::path& base);
// TOML with every value written out; load_config of it gives an equal Config. Paths are absolute,
// those of plugins too. Throws Error(config) when a text is not UTF-8, which TOML cannot hold, or when there is no
// default linear rule.
std::string to_toml(const Config& config);
// One rule as [[linear.rules]], the same way.
std::string to_toml(const Config& config, const LinearRule& rule);

}  // namespace facet
