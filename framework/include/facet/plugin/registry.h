// Finding, checking and loading plugin libraries.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "facet/abi/attention.h"
#include "facet/abi/kv_cache.h"
#include "facet/abi/linear.h"
#include "facet/abi/plugin.h"
#include "facet/abi/scheduler.h"
#include "facet/config/options.h"

namespace facet {

const char* to_string(abi::PluginKind kind) noexcept;  // "linear", "attention", "kv_cache", "scheduler"

// One loaded and checked library. It stays loaded until the process ends, so pointers into it never dangle.
struct LoadedPlugin {
  std::filesystem::path file;  // canonical
  const abi::PluginDescriptor* descriptor = nullptr;
  std::uint64_t file_hash = 0;  // fnv1a of the file
};

// Calls the plugin's destroy; logs should it throw.
void destroy_instance(const LoadedPlugin& plugin, void* instance) noexcept;

// Kind of an interface class.
template <typename Interface>
inline constexpr abi::PluginKind kKindOf = abi::PluginKind{};
template <>
inline constexpr abi::PluginKind kKindOf<abi::Linear> = abi::PluginKind::linear;
template <>
inline constexpr abi::PluginKind kKindOf<abi::Attention> = abi::PluginKind::attention;
template <>
inline constexpr abi::PluginKind kKindOf<abi::KvCache> = abi::PluginKind::kv_cache;
template <>
inline constexpr abi::PluginKind kKindOf<abi::Scheduler> = abi::PluginKind::scheduler;

// An instance that a plugin made; destroyed by the plugin. Movable, not copyable.
template <typename Interface>
class PluginInstance {
 public:
  PluginInstance() = default;
  PluginInstance(const LoadedPlugin* plugin, Interface* instance) : plugin_(plugin), instance_(instance) {}
  PluginInstance(PluginInstance&& other) noexcept : plugin_(other.plugin_), instance_(other.instance_) {
    other.instance_ = nullptr;
  }
  PluginInstance& operator=(PluginInstance&& other) noexcept {
    std::swap(plugin_, other.plugin_);
    std::swap(instance_, other.instance_);
    return *this;
  }
  ~PluginInstance() {
    if (instance_ != nullptr) destroy_instance(*plugin_, instance_);
  }
  Interface* operator->() const { return instance_; }
  Interface* get() const { return instance_; }
  const LoadedPlugin& plugin() const { return *plugin_; }
  explicit operator bool() const { return instance_ != nullptr; }

 private:
  const LoadedPlugin* plugin_ = nullptr;
  Interface* instance_ = nullptr;
};

// What became of one candidate file, for `facet plugins list`.
struct PluginReport {
  std::filesystem::path file;
  const LoadedPlugin* plugin = nullptr;  // null: refused
  bool available = false;                // loaded and probe() says this machine can run it
  std::string reason;                    // why refused or unavailable
};

class PluginRegistry {
 public:
  // Directories searched for names, in order: `extra` (config file's [plugins] path, then --plugin-dir),
  // FACET_PLUGIN_PATH (colon separated), then beside the program: <bin>/../lib/facet/plugins. The working directory is
  // never searched. `absent`: the device that is planned for and is not here, see create().
  PluginRegistry(const abi::HostTable* host, const std::vector<std::filesystem::path>& extra,
                 abi::Device absent = abi::Device::none);
  ~PluginRegistry();
  PluginRegistry(PluginRegistry&&) noexcept;

  // By name: the first directory that holds a plugin of that kind and name. A name with '/' or ending in ".so" is a
  // path, relative to `base`. Throws Error(plugin) naming file, field, both values and the cure, or every place tried
  // and the nearest known name. In a directory <kind>_<name>.so is tried first, and its refusal is the error; then
  // every other .so in order of its name, whose refusals are listed.
  const LoadedPlugin& load(abi::PluginKind kind, const std::string& name, const std::filesystem::path& base);
  // Loads one file whatever its kind.
  const LoadedPlugin& load_file(const std::filesystem::path& file);
  // Every .so of every directory, in search order, refused ones with the reason.
  std::vector<PluginReport> scan();
  const std::vector<std::filesystem::path>& directories() const;

  // Whether the plugin runs on nothing but the absent device.
  bool runs_on_absent(const LoadedPlugin& plugin) const;

  // probe() and create(); throws Error(plugin) with the plugin's reasons. A plugin for the absent device is not probed:
  // with kPlansWithoutDevice its instance may plan, without that there is none (a null instance that knows its plugin).
  template <typename Interface>
  PluginInstance<Interface> create(const LoadedPlugin& plugin, const OptionSet& options) {
    return {&plugin, static_cast<Interface*>(create_raw(plugin, kKindOf<Interface>, options))};
  }

 private:
  void* create_raw(const LoadedPlugin& plugin, abi::PluginKind kind, const OptionSet& options);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace facet
