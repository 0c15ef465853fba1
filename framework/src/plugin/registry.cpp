#include "facet/plugin/registry.h"

#include <algorithm>
#include <set>

#include "facet/base/error.h"
#include "facet/base/text.h"
#include "facet/plugin/cuda_plugins.h"
#include "facet/sdk/text.h"
#include "plugin/library.h"
#include "plugin/search_path.h"

namespace facet {

namespace fs = std::filesystem;

const char* to_string(abi::PluginKind kind) noexcept {
  switch (kind) {
    case abi::PluginKind::linear:
      return "linear";
    case abi::PluginKind::attention:
      return "attention";
    case abi::PluginKind::kv_cache:
      return "kv_cache";
    case abi::PluginKind::scheduler:
      return "scheduler";
  }
  return "unknown";
}

struct PluginRegistry::Impl {
  const abi::HostTable* host;
  abi::Device absent;
  std::vector<SearchPlace> places;
  std::vector<fs::path> directories;
};

namespace {

bool is_path(const std::string& name) {
  return name.find('/') != std::string::npos || (name.size() > 3 && name.compare(name.size() - 3, 3, ".so") == 0);
}

// What a search has seen, for the message when it fails.
struct Search {
  abi::PluginKind kind;
  const std::string& name;
  std::vector<std::string> places;       // one line for each place and each refused file
  std::vector<std::string> known;        // names of the kind
  std::vector<std::string> other_kinds;  // files that hold the name under another kind

  const LoadedPlugin* take(const LoadedPlugin& plugin) {
    const abi::PluginDescriptor& descriptor = *plugin.descriptor;
    if (descriptor.kind == kind && descriptor.name == name) return &plugin;
    if (descriptor.kind == kind) known.push_back(descriptor.name);
    if (descriptor.kind != kind && descriptor.name == name)
      other_kinds.push_back(fmt::format("{} holds '{}', but its kind is {}, asked was {}", plugin.file.string(), name,
                                        to_string(descriptor.kind), to_string(kind)));
    return nullptr;
  }

  const LoadedPlugin* search(const SearchPlace& place) {
    std::error_code ignored;
    const fs::path expected = place.directory / fmt::format("{}_{}.so", to_string(kind), name);
    // The file that carries the name is what the user means: its refusal is the answer, not a reason to take another.
    if (fs::exists(expected, ignored)) {
      if (const LoadedPlugin* plugin = take(load_library(expected))) return plugin;
    }
    const std::vector<fs::path> files = libraries_in(place.directory);
    places.push_back(fmt::format("{} ({}): {}", place.directory.string(), place.origin,
                                 !fs::is_directory(place.directory, ignored)
                                     ? std::string("no such folder")
                                     : fmt::format("{} .so files", files.size())));
    for (const fs::path& file : files) {
      if (file == expected) continue;
      try {
        if (const LoadedPlugin* plugin = take(load_library(file))) return plugin;
      } catch (const Error& refusal) {
        places.push_back(fmt::format("  refused: {}", refusal.message()));
      }
    }
    return nullptr;
  }

  [[noreturn]] void fail() {
    if (!built_with_cuda() && is_cuda_plugin(kind, name))
      throw_error(ErrorKind::plugin, "this build has no CUDA plugins, and {} plugin '{}' is one: {}, or {}",
                  to_string(kind), name, kCudaBuildCure, kCpuCure);
    std::string text = fmt::format("no {} plugin is named '{}'", to_string(kind), name);
    const std::string nearest = nearest_name(name, known);
    if (!nearest.empty()) text += fmt::format("; did you mean '{}'?", nearest);
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    text += known.empty() ? fmt::format("; no {} plugin was found at all", to_string(kind))
                          : fmt::format("; found were {}", fmt::join(known, ", "));
    for (const std::string& line : other_kinds) text += "\n  " + line;
    text += "\n  searched in this order:";
    for (const std::string& line : places) text += "\n    " + line;
    text += "\n  correct the name, or add the plugin's folder with [plugins] path, --plugin-dir or FACET_PLUGIN_PATH";
    throw Error(ErrorKind::plugin, text);
  }
};

}  // namespace

PluginRegistry::PluginRegistry(const abi::HostTable* host, const std::vector<fs::path>& extra, abi::Device absent)
    : impl_(std::make_unique<Impl>(Impl{host, absent, search_places(extra), {}})) {
  if (host == nullptr) throw_error(ErrorKind::plugin, "a plugin registry needs a host table, got null");
  for (const SearchPlace& place : impl_->places) impl_->directories.push_back(place.directory);
}

PluginRegistry::~PluginRegistry() = default;
PluginRegistry::PluginRegistry(PluginRegistry&&) noexcept = default;

const std::vector<fs::path>& PluginRegistry::directories() const {
  return impl_->directories;
}

const LoadedPlugin& PluginRegistry::load_file(const fs::path& file) {
  return load_library(fs::absolute(file));
}

const LoadedPlugin& PluginRegistry::load(abi::PluginKind kind, const std::string& name, const fs::path& base) {
  if (!is_path(name)) {
    Search search{kind, name, {}, {}, {}};
    for (const SearchPlace& place : impl_->places) {
      if (const LoadedPlugin* plugin = search.search(place)) return *plugin;
    }
    search.fail();
  }
  const fs::path file(name);
  if (file.is_relative() && !base.is_absolute())
    throw_error(ErrorKind::plugin,
                "plugin '{}': the path is relative and its base '{}' is not an absolute folder; write the full path, "
                "the working directory is never searched",
                name, base.string());
  // For an absolute `file` the operator gives `file` itself.
  const LoadedPlugin& plugin = load_library(base / file);
  if (plugin.descriptor->kind != kind)
    throw_error(ErrorKind::plugin, "{}: kind is {} ('{}'), asked was {}; name it where a {} plugin is chosen",
                plugin.file.string(), to_string(plugin.descriptor->kind), plugin.descriptor->name, to_string(kind),
                to_string(plugin.descriptor->kind));
  return plugin;
}

std::vector<PluginReport> PluginRegistry::scan() {
  std::vector<PluginReport> reports;
  std::set<fs::path> seen;
  for (const fs::path& directory : impl_->directories) {
    for (const fs::path& file : libraries_in(directory)) {
      std::error_code ignored;
      const fs::path canonical = fs::canonical(file, ignored);
      if (!seen.insert(ignored ? file : canonical).second) continue;
      PluginReport report;
      report.file = file;
      try {
        report.plugin = &load_library(file);
        const CallOutcome outcome = probe_plugin(*report.plugin, impl_->host);
        report.available = outcome.status == abi::Status::ok;
        if (!report.available)
          report.reason = outcome.text.empty() ? std::string(sdk::to_string(outcome.status)) : outcome.text;
      } catch (const Error& refusal) {
        report.reason = refusal.message();
      }
      reports.push_back(std::move(report));
    }
  }
  return reports;
}

bool PluginRegistry::runs_on_absent(const LoadedPlugin& plugin) const {
  return plugin.descriptor->devices == static_cast<std::uint32_t>(impl_->absent);
}

void* PluginRegistry::create_raw(const LoadedPlugin& plugin, abi::PluginKind kind, const OptionSet& options) {
  const abi::PluginDescriptor& descriptor = *plugin.descriptor;
  const std::string who =
      fmt::format("{}: {} plugin '{}'", plugin.file.string(), to_string(descriptor.kind), descriptor.name);
  const auto text_of = [](const CallOutcome& outcome) {
    return outcome.text.empty() ? std::string("the plugin gives no reason") : outcome.text;
  };
  if (descriptor.kind != kind)
    throw_error(ErrorKind::plugin, "{}: kind is {}, asked was an instance of {}", who, to_string(descriptor.kind),
                to_string(kind));
  const abi::Options values = options.view();
  if (values.count != descriptor.option_count)
    throw_error(ErrorKind::plugin, "{}: {} option values for a schema of {}; resolve the options with its schema", who,
                values.count, descriptor.option_count);
  const bool absent = runs_on_absent(plugin);
  if (absent && (descriptor.flags & abi::kPlansWithoutDevice) == 0) return nullptr;
  const CallOutcome probed = absent ? CallOutcome{abi::Status::ok, {}} : probe_plugin(plugin, impl_->host);
  if (probed.status != abi::Status::ok)
    throw_error(ErrorKind::plugin, "{}: probe says {}, needed is ok: {}; choose another plugin on this machine", who,
                sdk::to_string(probed.status), text_of(probed));
  void* instance = nullptr;
  const CallOutcome created = create_instance(plugin, impl_->host, values, &instance);
  if (created.status != abi::Status::ok)
    throw_error(ErrorKind::plugin, "{}: create says {}, needed is ok: {}; correct its options or choose another plugin",
                who, sdk::to_string(created.status), text_of(created));
  if (instance == nullptr)
    throw_error(ErrorKind::plugin,
                "{}: create says ok and gives a null instance, needed is an instance; correct the "
                "plugin",
                who);
  return instance;
}

}  // namespace facet
