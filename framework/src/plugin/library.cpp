#include "plugin/library.h"

#include <boost/dll/shared_library.hpp>
#include <fstream>
#include <map>
#include <mutex>
#include <vector>

#include "facet/base/error.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "plugin/descriptor_check.h"
#include "plugin/elf_stamp.h"
#include "plugin/stamp_check.h"

namespace facet {

namespace fs = std::filesystem;

namespace {

struct Library {
  boost::dll::shared_library handle;
  LoadedPlugin plugin;
  std::string refusal;  // of the descriptor; the library stays mapped, so the answer cannot change
};

// Libraries are never unloaded: a thread_local with a destructor, an exception or a text of the plugin may outlive
// every instance, and glibc keeps many libraries mapped anyway. So the table is process wide and is deliberately not
// destroyed at exit, when threads of plugins may still run.
struct Libraries {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Library>> by_file;
};
Libraries& libraries() {
  static auto& table = *new Libraries;
  return table;
}

std::uint64_t hash_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<char> piece(1 << 20);
  std::uint64_t hash = fnv1a(nullptr, 0);
  while (in) {
    in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash = fnv1a(piece.data(), static_cast<std::size_t>(in.gcount()), hash);
  }
  return hash;
}

void open_library(const fs::path& file, Library& library) {
  try {
    // The throwing overload carries the text of dlerror, which names an unresolved symbol; an error_code loses it.
    library.handle.load(file.string(), boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
  } catch (const std::exception& error) {
    throw_error(ErrorKind::plugin,
                "{}: the system's loader refused it, needed is a library whose every symbol and library is found: {}; "
                "install the library it names, or rebuild the plugin without the symbol",
                file.string(), error.what());
  }
  if (!library.handle.has(abi::kEntrySymbol))
    throw_error(ErrorKind::plugin,
                "{}: entry symbol is absent, needed is {}; export the plugin with FACET_EXPORT_PLUGIN", file.string(),
                abi::kEntrySymbol);
}

const abi::PluginDescriptor* ask_descriptor(const fs::path& file, Library& library) {
  try {
    return library.handle.get<const abi::PluginDescriptor*()>(abi::kEntrySymbol)();
  } catch (const std::exception& error) {
    throw_error(ErrorKind::plugin, "{}: {}() threw '{}', needed is a constant; correct the plugin", file.string(),
                abi::kEntrySymbol, error.what());
  } catch (...) {
    throw_error(ErrorKind::plugin, "{}: {}() threw an unknown exception, needed is a constant; correct the plugin",
                file.string(), abi::kEntrySymbol);
  }
}

void join_line(void* context, const char* text, std::uint64_t size) {
  auto& joined = *static_cast<std::string*>(context);
  if (!joined.empty()) joined += "; ";
  if (text != nullptr) joined.append(text, size);
}

template <typename Call>
CallOutcome guarded_call(const char* function, Call&& call) {
  CallOutcome outcome;
  try {
    outcome.status = call(abi::TextSink{&outcome.text, join_line});
  } catch (const std::exception& error) {
    outcome.status = abi::Status::failed;
    outcome.text = fmt::format("{} threw '{}', needed is a status; the plugin must not throw across the line", function,
                               error.what());
  } catch (...) {
    outcome.status = abi::Status::failed;
    outcome.text = fmt::format(
        "{} threw an unknown exception, needed is a status; the plugin must not throw across the "
        "line",
        function);
  }
  return outcome;
}

}  // namespace

const LoadedPlugin& load_library(const fs::path& file) {
  std::error_code error;
  fs::path canonical = fs::canonical(file, error);
  // read_stamp() says what is wrong with a file that does not resolve.
  if (error) canonical = file;
  Libraries& table = libraries();
  const std::lock_guard lock(table.mutex);
  if (const auto found = table.by_file.find(canonical.string()); found != table.by_file.end()) {
    if (!found->second->refusal.empty()) throw Error(ErrorKind::plugin, found->second->refusal);
    return found->second->plugin;
  }
  const std::string signature = check_stamp(canonical, read_stamp(canonical));
  auto library = std::make_unique<Library>();
  library->plugin.file = canonical;
  library->plugin.file_hash = hash_file(canonical);
  open_library(canonical, *library);
  Library& kept = *(table.by_file[canonical.string()] = std::move(library));
  try {
    kept.plugin.descriptor = ask_descriptor(canonical, kept);
    check_descriptor(canonical, kept.plugin.descriptor, signature);
  } catch (const Error& refusal) {
    kept.refusal = refusal.message();
    throw;
  }
  log(LogLevel::debug, "loaded {} '{}' {} from {}", to_string(kept.plugin.descriptor->kind),
      kept.plugin.descriptor->name, kept.plugin.descriptor->version, canonical.string());
  return kept.plugin;
}

CallOutcome probe_plugin(const LoadedPlugin& plugin, const abi::HostTable* host) {
  if (plugin.descriptor->probe == nullptr) return {};
  return guarded_call("probe", [&](abi::TextSink sink) { return plugin.descriptor->probe(host, sink); });
}

CallOutcome create_instance(const LoadedPlugin& plugin, const abi::HostTable* host, const abi::Options& options,
                            void** instance) {
  return guarded_call("create",
                      [&](abi::TextSink sink) { return plugin.descriptor->create(host, &options, instance, sink); });
}

void destroy_instance(const LoadedPlugin& plugin, void* instance) noexcept {
  try {
    plugin.descriptor->destroy(instance);
  } catch (...) {
    log_text(LogLevel::error, fmt::format("{}: destroy of '{}' threw; the plugin must not throw across the line",
                                          plugin.file.string(), plugin.descriptor->name));
  }
}

}  // namespace facet
