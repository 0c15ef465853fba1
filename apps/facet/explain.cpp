// facet explain: which plugin serves what, by which rule, and why the others do not. Reads no weight.
#include <cstdio>

#include "common.h"
#include "explain_json.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "plan_json.h"
#include "resolved_config.h"

namespace facet::cli {
namespace {

struct ExplainOptions {
  std::string config;
  bool all = false;
  bool resolved = false;
};

// {0,1,2,4} -> "0-2,4"
std::string layer_ranges(const std::vector<std::int64_t>& layers) {
  std::string text;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t last = i;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += fmt::format("{}", layers[i]);
    if (last > i) text += fmt::format("-{}", layers[last]);
    i = last + 1;
  }
  return text;
}

std::string text_of(const Json& value) {
  return value.get<std::string>();
}

std::string plugin_text(const Json& choice) {
  const std::string options = text_of(choice["options"]);
  return fmt::format("{} {}{}", text_of(choice["plugin"]), text_of(choice["version"]),
                     options.empty() ? "" : fmt::format(" ({})", options));
}

// Rules are counted from 0; the line is what a reader finds. Rules of a tuning file are named with theirs.
std::string rule_text(const Json& choice) {
  std::string rule = text_of(choice["rule"]);
  if (!rule.starts_with("linear.rules[")) return rule;
  return fmt::format("{} of line {}", rule, choice["rule_line"].get<int>());
}

void print_refusals(const Json& entry, int indent) {
  for (const Json& refusal : entry["refused"]) {
    fmt::print("{:{}}refused {}: {}\n", "", indent, text_of(refusal["plugin"]), text_of(refusal["reasons"]));
  }
  if (!entry.contains("others")) return;
  for (const Json& other : entry["others"]) {
    fmt::print("{:{}}{} {}{}\n", "", indent,
               other["takes_it"].get<bool>() ? "would take it:" : "would refuse:", text_of(other["plugin"]),
               other["takes_it"].get<bool>() ? "" : fmt::format(": {}", text_of(other["reasons"])));
  }
}

// Modules that differ only in their layer are one entry.
struct ModuleRange {
  std::string name;  // without "layers.N."
  std::string same;  // everything but layer and module, as text
  std::vector<std::int64_t> layers;
  const Json* entry;
};

std::vector<ModuleRange> group_modules(const Json& modules) {
  std::vector<ModuleRange> ranges;
  for (const Json& entry : modules) {
    const std::int64_t layer = entry["layer"].get<std::int64_t>();
    std::string name = text_of(entry["module"]);
    const std::string prefix = fmt::format("layers.{}.", layer);
    if (layer >= 0 && name.compare(0, prefix.size(), prefix) == 0) name = name.substr(prefix.size());
    Json same = entry;
    same.erase("layer");
    same.erase("module");
    const std::string key = same.dump();
    const auto found = std::find_if(ranges.begin(), ranges.end(),
                                    [&](const ModuleRange& range) { return range.name == name && range.same == key; });
    if (found != ranges.end()) {
      found->layers.push_back(layer);
    } else {
      ranges.push_back({name, key, {layer}, &entry});
    }
  }
  return ranges;
}

void print_linear(const Json& modules) {
  fmt::print("linear\n");
  for (const ModuleRange& range : group_modules(modules)) {
    const Json& entry = *range.entry;
    const std::string place =
        range.layers.front() < 0 ? std::string() : fmt::format("layers {} ", layer_ranges(range.layers));
    fmt::print("  {}{}: {}, out {}, in {}\n", place, range.name, text_of(entry["weights"]),
               entry["out_features"].get<std::int64_t>(), entry["in_features"].get<std::int64_t>());
    for (const Json& choice : entry["choices"]) {
      if (!choice["planned"].get<bool>()) {
        fmt::print("    rows {}-{}: {}, rule {}, not asked: it plans only on its device\n",
                   choice["min_rows"].get<std::int64_t>(), choice["max_rows"].get<std::int64_t>(), plugin_text(choice),
                   rule_text(choice));
        print_refusals(choice, 6);
        continue;
      }
      const std::string layout = text_of(choice["layout"]), fused = text_of(choice["fused"]);
      fmt::print("    rows {}-{}: {}, rule {}, {}{}\n", choice["min_rows"].get<std::int64_t>(),
                 choice["max_rows"].get<std::int64_t>(), plugin_text(choice), rule_text(choice),
                 fused.empty() ? std::string() : fmt::format("fuses {}, ", fused),
                 layout.empty() ? std::string("reads the weights in place")
                                : fmt::format("layout '{}', {} packed", layout,
                                              format_bytes(choice["packed_bytes"].get<std::uint64_t>())));
      print_refusals(choice, 6);
    }
  }
}

void print_groups(const Json& document) {
  fmt::print("attention\n");
  for (const Json& entry : document["attention"]) {
    const bool shared = text_of(entry["kv_form"]) == "shared";
    fmt::print("  {} layers {}: {}, rule {}, KV layout {}{}\n", text_of(entry["group"]),
               layer_ranges(entry["layers"].get<std::vector<std::int64_t>>()), plugin_text(entry),
               text_of(entry["rule"]), text_of(entry["layout"]), shared ? ", shared form" : "");
    if (!entry["planned"].get<bool>())
      fmt::print("    not asked: it plans only on its device; the layout is the cache's first\n");
    print_refusals(entry, 4);
    for (const Json& refusal : entry["kv_form_refused"])
      fmt::print("    no shared form: {}: {}\n", text_of(refusal["plugin"]), text_of(refusal["reasons"]));
  }
  fmt::print("kv_cache\n");
  for (const Json& entry : document["kv_cache"]) {
    const std::int64_t window = entry["window"].get<std::int64_t>();
    const std::int64_t values = entry["head_dim"].get<std::int64_t>(), keys = entry["key_width"].get<std::int64_t>();
    fmt::print("  {} layers {}: {}, rule {}, {} KV heads of {}{}, {}, pool {}\n", text_of(entry["group"]),
               layer_ranges(entry["layers"].get<std::vector<std::int64_t>>()), plugin_text(entry),
               text_of(entry["rule"]), entry["kv_heads"].get<std::int64_t>(), values,
               keys < values ? fmt::format(" (keys of {})", keys) : std::string(),
               window > 0 ? fmt::format("window {}", window) : std::string("every key"),
               format_bytes(entry["pool_bytes"].get<std::uint64_t>()));
    print_refusals(entry, 4);
  }
  const Json& scheduler = document["scheduler"];
  fmt::print("scheduler\n  {}, rule {}\n", plugin_text(scheduler), text_of(scheduler["rule"]));
}

// Looks at plugins and not at the model, so a configuration whose checkpoint is elsewhere can be printed too. Only the
// modules of the model say which rules a tuning file leaves nothing to.
Config resolved_config(const ExplainOptions& options, const GlobalOptions& global) {
  const Config config = load_config(options.config);
  if (config.tuning.rules > 0) return with_option_defaults(*open_plan(options.config, global));
  const HostServices services(config.engine.threads, config.engine.cpu_isa);
  std::vector<std::filesystem::path> directories = config.plugin_paths;
  for (const std::filesystem::path& directory : absolute_plugin_dirs(global)) directories.push_back(directory);
  PluginRegistry registry(services.table(), directories);
  return with_option_defaults(config, registry);
}

void print_resolved(const ExplainOptions& options, const GlobalOptions& global) {
  const Config config = resolved_config(options, global);
  const std::string text = to_toml(config);
  if (global.json) {
    print_json({{"config_file", config.file.string()}, {"config", text}});
  } else {
    fmt::print("{}", text);
  }
}

void explain(const ExplainOptions& options, const GlobalOptions& global) {
  if (options.resolved) {
    print_resolved(options, global);
    return;
  }
  const auto pipeline = open_plan(options.config, global);
  const Json document = explain_json(*pipeline, options.all);
  if (global.json) {
    print_json(document);
    return;
  }
  fmt::print("{}\ncheckpoint {}\n", text_of(document["config_file"]), text_of(document["checkpoint"]));
  fmt::print("device {}\n", text_of(document["device"]));
  print_absence(document, "  planned");
  print_linear(document["linear"]);
  print_groups(document);
}

}  // namespace

void add_explain(CLI::App& app, GlobalOptions& global) {
  CLI::App* command = app.add_subcommand("explain", "Which plugin serves what, and why the others do not");
  auto options = std::make_shared<ExplainOptions>();
  command->add_option("config", options->config, "TOML file")->required();
  command->add_flag(
      "--resolved", options->resolved,
      "Print the configuration with every value written out, defaults of the plugins too, as TOML, and stop");
  command->add_flag("--all", options->all, "Also ask every other installed linear and attention plugin");
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    explain(*options, global);
  });
}

}  // namespace facet::cli
