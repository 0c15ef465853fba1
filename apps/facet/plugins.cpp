// facet plugins: what is installed, what each one offers, and why a file is refused.
#include <dlfcn.h>

#include <cstdio>

#include "common.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "plugin_json.h"
#include "request_file.h"

namespace facet::cli {
namespace {

namespace fs = std::filesystem;

struct PluginsOptions {
  std::string target, kind;
};

// No config file is needed: default threads and the processor as it is.
struct Installed {
  HostServices services{0, "auto"};
  PluginRegistry registry;

  explicit Installed(const GlobalOptions& global) : registry(services.table(), absolute_plugin_dirs(global)) {}
};

Json directories_json(const PluginRegistry& registry) {
  Json list = Json::array();
  for (const fs::path& directory : registry.directories()) {
    std::error_code ignored;
    list.push_back({{"path", directory.string()}, {"exists", fs::is_directory(directory, ignored)}});
  }
  return list;
}

Json report_json(const PluginReport& report) {
  Json entry = report.plugin != nullptr ? plugin_json(*report.plugin) : Json{{"file", report.file.string()}};
  entry["state"] = report.available ? "available" : report.plugin != nullptr ? "unavailable" : "refused";
  if (!report.available) entry["reason"] = report.reason;
  return entry;
}

void print_list(const Json& document) {
  for (const Json& entry : document["plugins"]) {
    if (entry["state"] == "refused") {
      fmt::print("refused      {}\n             {}\n", entry["file"].get<std::string>(),
                 entry["reason"].get<std::string>());
      continue;
    }
    fmt::print("{:<12} {:<11} {:<14} {:<8} {:<9} {}\n", entry["state"].get<std::string>(),
               entry["kind"].get<std::string>(), entry["name"].get<std::string>(), entry["version"].get<std::string>(),
               joined(entry["devices"]), joined(entry["flags"]));
    fmt::print("             {}\n", entry["file"].get<std::string>());
    if (entry.contains("reason")) fmt::print("             {}\n", entry["reason"].get<std::string>());
  }
  fmt::print("searched in this order:\n");
  for (const Json& directory : document["directories"]) {
    fmt::print("  {}{}\n", directory["path"].get<std::string>(),
               directory["exists"].get<bool>() ? "" : " (no such folder)");
  }
}

void list(const GlobalOptions& global) {
  Installed installed(global);
  Json document = {{"plugins", Json::array()}, {"directories", Json::array()}};
  for (const PluginReport& report : installed.registry.scan()) document["plugins"].push_back(report_json(report));
  document["directories"] = directories_json(installed.registry);
  if (global.json) {
    print_json(document);
  } else {
    print_list(document);
  }
}

abi::PluginKind parse_kind(const std::string& text) {
  std::vector<std::string> names;
  for (const abi::PluginKind kind : kPluginKinds) {
    if (text == to_string(kind)) return kind;
    names.emplace_back(to_string(kind));
  }
  throw_error(ErrorKind::usage, "--kind: '{}' is unknown; use {}", text, fmt::join(names, ", "));
}

// By name without a kind: the first plugin of that name of every kind.
std::vector<const LoadedPlugin*> find_by_name(PluginRegistry& registry, const std::string& name) {
  std::vector<const LoadedPlugin*> found;
  std::vector<std::string> known;
  for (const PluginReport& report : registry.scan()) {
    if (report.plugin == nullptr) continue;
    known.emplace_back(report.plugin->descriptor->name);
    const bool shadowed = std::any_of(found.begin(), found.end(), [&](const LoadedPlugin* other) {
      return other->descriptor->kind == report.plugin->descriptor->kind;
    });
    if (known.back() == name && !shadowed) found.push_back(report.plugin);
  }
  if (!found.empty()) return found;
  const std::string near = nearest_name(name, known);
  std::string places;
  for (const fs::path& directory : registry.directories()) places += fmt::format("\n  {}", directory.string());
  throw_error(ErrorKind::plugin, "no plugin is named '{}'{}; searched:{}\n  see `facet plugins list` for refused files",
              name, near.empty() ? "" : fmt::format("; did you mean '{}'?", near), places);
}

std::vector<const LoadedPlugin*> find_described(PluginRegistry& registry, const PluginsOptions& options) {
  // A path on the command line is the shell's: relative to the working directory.
  if (is_plugin_path(options.target)) {
    const LoadedPlugin& plugin = registry.load_file(options.target);
    if (!options.kind.empty() && parse_kind(options.kind) != plugin.descriptor->kind) {
      throw_error(ErrorKind::usage, "--kind: {} holds a {} plugin, asked was {}", options.target,
                  to_string(plugin.descriptor->kind), options.kind);
    }
    return {&plugin};
  }
  if (options.kind.empty()) return find_by_name(registry, options.target);
  return {&registry.load(parse_kind(options.kind), options.target, fs::current_path())};
}

void describe(const PluginsOptions& options, const GlobalOptions& global) {
  Installed installed(global);
  Json document = {{"plugins", Json::array()}};
  for (const LoadedPlugin* plugin : find_described(installed.registry, options)) {
    const abi::PluginDescriptor& descriptor = *plugin->descriptor;
    Json entry = plugin_json(*plugin);
    entry["options"] = option_schema_json(descriptor);
    if (!global.json) {
      fmt::print("{} plugin '{}' {}: {}\n", to_string(descriptor.kind), descriptor.name, descriptor.version,
                 descriptor.summary);
      fmt::print("  file     {}\n  devices  {}\n  phases   {}\n  flags    {}\n  build    {}\n\n{}\n",
                 plugin->file.string(), joined(entry["devices"]), joined(entry["phases"]), joined(entry["flags"]),
                 descriptor.build_signature,
                 descriptor.option_count > 0 ? option_table(descriptor) : std::string("no options\n"));
    }
    document["plugins"].push_back(std::move(entry));
  }
  if (global.json) print_json(document);
}

// The host's checks in their order. The loader stops at the first that fails, so later ones are not reached.
struct Check {
  const char* name;
  const char* meaning;
};
constexpr Check kChecks[] = {
    {"stamp", "a whole library for this processor, stamped with this program's contract, layout and build"},
    {"loader", "every symbol and library it needs is found, and the entry symbol is exported"},
    {"descriptor", "identity, kind, interface, name, version, masks and option schema are understood"},
    {"probe", "this machine can run it"},
    {"create", "an instance with default options"},
};

bool is_mapped(const std::string& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return false;  // a pipe would be waited for
  void* handle = dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

// Which check refused a file. A library stays mapped once it got past the loader.
std::size_t refused_at(const std::string& file, const std::string& message) {
  if (message.find("the system's loader refused it") != std::string::npos) return 1;
  if (message.find("entry symbol is absent") != std::string::npos) return 1;
  return is_mapped(file) ? 2 : 0;
}

void create_default(PluginRegistry& registry, const LoadedPlugin& plugin) {
  const OptionSet options(*plugin.descriptor);
  switch (plugin.descriptor->kind) {
    case abi::PluginKind::linear:
      registry.create<abi::Linear>(plugin, options);
      return;
    case abi::PluginKind::attention:
      registry.create<abi::Attention>(plugin, options);
      return;
    case abi::PluginKind::kv_cache:
      registry.create<abi::KvCache>(plugin, options);
      return;
    case abi::PluginKind::scheduler:
      registry.create<abi::Scheduler>(plugin, options);
      return;
  }
}

void check(const PluginsOptions& options, const GlobalOptions& global) {
  Installed installed(global);
  const std::string file = fs::absolute(options.target).lexically_normal().string();
  Json document = {{"file", file}, {"verdict", "accepted"}, {"checks", Json::array()}};
  std::size_t failed = std::size(kChecks);
  std::string reason;
  try {
    const LoadedPlugin& plugin = installed.registry.load_file(file);
    failed = 3;
    document["plugin"] = plugin_json(plugin);
    create_default(installed.registry, plugin);
    failed = std::size(kChecks);
  } catch (const Error& error) {
    reason = error.message();
    if (failed == 3) {
      failed = reason.find("probe says") != std::string::npos ? 3 : 4;
    } else {
      failed = refused_at(file, reason);
    }
    // Only the plugin itself can say that it is sound but not for this machine.
    document["verdict"] = reason.find("probe says unavailable") != std::string::npos ? "unavailable" : "refused";
  }
  for (std::size_t i = 0; i < std::size(kChecks); ++i) {
    Json line = {{"name", kChecks[i].name}, {"meaning", kChecks[i].meaning}};
    line["result"] = i < failed ? "pass" : i == failed ? "fail" : "not reached";
    if (i == failed) line["text"] = reason;
    if (!global.json) {
      fmt::print("{:<12} {:<11} {}\n", line["result"].get<std::string>(), kChecks[i].name, kChecks[i].meaning);
      if (i == failed) fmt::print("             {}\n", reason);
    }
    document["checks"].push_back(std::move(line));
  }
  if (global.json) {
    print_json(document);
  } else {
    fmt::print("{}: {}\n", file, document["verdict"].get<std::string>());
  }
  if (reason.empty()) return;
  // On a terminal both streams are read: the table has said why.
  if (!global.json)
    reason = fmt::format("{}: {}, the check '{}' failed", file, document["verdict"].get<std::string>(),
                         kChecks[failed].name);
  throw Error(ErrorKind::plugin, reason);
}

}  // namespace

void add_plugins(CLI::App& app, GlobalOptions& global) {
  CLI::App* command = app.add_subcommand("plugins", "Installed plugins, their options, and checks of a file");
  command->require_subcommand(1);
  auto options = std::make_shared<PluginsOptions>();
  const auto prepare = [&global] { set_log_level(parse_log_level(global.log_level)); };

  CLI::App* list_command = command->add_subcommand("list", "Every library of every search directory");
  add_global_options(*list_command, global);
  list_command->callback([prepare, &global] {
    prepare();
    list(global);
  });

  CLI::App* describe_command = command->add_subcommand("describe", "Descriptor and options of a plugin");
  describe_command->add_option("plugin", options->target, "Name, or a file ending in .so")->required();
  describe_command->add_option("--kind", options->kind, "linear, attention, kv_cache or scheduler");
  add_global_options(*describe_command, global);
  describe_command->callback([prepare, options, &global] {
    prepare();
    describe(*options, global);
  });

  CLI::App* check_command = command->add_subcommand("check", "Every check of the host on one file");
  check_command->add_option("file", options->target, "The shared library")->required()->check(not_empty());
  add_global_options(*check_command, global);
  check_command->callback([prepare, options, &global] {
    prepare();
    check(*options, global);
  });
}

}  // namespace facet::cli
