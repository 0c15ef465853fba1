#include "plugin/descriptor_check.h"

#include <algorithm>
#include <cstring>

#include "facet/abi/attention.h"
#include "facet/abi/kv_cache.h"
#include "facet/abi/layout.h"
#include "facet/abi/linear.h"
#include "facet/abi/scheduler.h"
#include "facet/base/error.h"
#include "plugin/schema_check.h"

namespace facet {

namespace {

constexpr std::uint32_t kKnownDevices =
    static_cast<std::uint32_t>(abi::Device::cpu) | static_cast<std::uint32_t>(abi::Device::cuda);
constexpr std::uint32_t kKnownPhases = abi::kPrefill | abi::kDecode;

void check_identity(const std::string& file, const abi::PluginDescriptor* descriptor, const std::string& signature) {
  if (descriptor == nullptr)
    throw_error(ErrorKind::plugin, "{}: {}() returned null, needed is a descriptor; return the same constant each time",
                file, abi::kEntrySymbol);
  if (descriptor->size != sizeof *descriptor)
    throw_error(ErrorKind::plugin,
                "{}: size of the descriptor is {}, this program has {}; rebuild the plugin with its headers", file,
                descriptor->size, sizeof *descriptor);
  if (descriptor->contract_version != abi::kContractVersion)
    throw_error(ErrorKind::plugin,
                "{}: contract_version is {}, this program has {}; rebuild the plugin with its headers", file,
                descriptor->contract_version, abi::kContractVersion);
  if (descriptor->layout_hash != abi::kLayoutHash)
    throw_error(ErrorKind::plugin,
                "{}: layout_hash is {:016x}, this program has {:016x}; rebuild the plugin with its "
                "headers",
                file, descriptor->layout_hash, abi::kLayoutHash);
  const std::string theirs =
      descriptor->build_signature == nullptr ? "(null)" : bounded_text(descriptor->build_signature);
  if (theirs != signature)
    throw_error(ErrorKind::plugin,
                "{}: build_signature is '{}', the stamp of the file says '{}'; export the plugin with "
                "FACET_EXPORT_PLUGIN, in one translation unit",
                file, theirs, signature);
}

std::uint32_t interface_version_of(abi::PluginKind kind) {
  switch (kind) {
    case abi::PluginKind::linear:
      return abi::kLinearInterfaceVersion;
    case abi::PluginKind::attention:
      return abi::kAttentionInterfaceVersion;
    case abi::PluginKind::kv_cache:
      return abi::kKvCacheInterfaceVersion;
    case abi::PluginKind::scheduler:
      return abi::kSchedulerInterfaceVersion;
  }
  return 0;
}

bool is_version(const std::string& text) {
  int dots = 0;
  char previous = '.';
  for (const char c : text) {
    if (c == '.') {
      if (previous == '.') return false;
      ++dots;
    } else if (c < '0' || c > '9') {
      return false;
    }
    previous = c;
  }
  return dots == 2 && previous != '.';
}

bool is_one_line(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) != 0x7f;
  });
}

void check_texts(const abi::PluginDescriptor& descriptor, Problems& problems) {
  const auto text_of = [](const char* text) { return text == nullptr ? std::string("(null)") : bounded_text(text); };
  if (!is_snake_case(text_of(descriptor.name)))
    problems.add("name is '{}', needed is snake_case of at most 64 characters", text_of(descriptor.name));
  if (!is_version(text_of(descriptor.version)))
    problems.add("version is '{}', needed is 'major.minor.patch' in digits", text_of(descriptor.version));
  if (descriptor.summary == nullptr || !is_one_line(bounded_text(descriptor.summary)))
    problems.add("summary is '{}', needed is one line of text", text_of(descriptor.summary));
}

void check_masks(const abi::PluginDescriptor& descriptor, Problems& problems) {
  if (descriptor.devices == 0 || (descriptor.devices & ~kKnownDevices) != 0)
    problems.add("devices is 0x{:x}, needed is at least one bit of 0x{:x} (cpu 1, cuda 2) and no other",
                 descriptor.devices, kKnownDevices);
  if (descriptor.phases == 0 || (descriptor.phases & ~kKnownPhases) != 0)
    problems.add("phases is 0x{:x}, needed is at least one bit of 0x{:x} (prefill 1, decode 2) and no other",
                 descriptor.phases, kKnownPhases);
  if ((descriptor.flags & ~abi::kKnownPluginFlags) != 0)
    problems.add("flags is 0x{:x}, this program knows 0x{:x}; drop the other bits or update this program",
                 descriptor.flags, abi::kKnownPluginFlags);
}

}  // namespace

void check_descriptor(const std::filesystem::path& file, const abi::PluginDescriptor* descriptor,
                      const std::string& signature) {
  check_identity(file.string(), descriptor, signature);
  const auto kind = static_cast<std::uint32_t>(descriptor->kind);
  if (kind < 1 || kind > 4)
    throw_error(ErrorKind::plugin,
                "{}: kind is {}, this program knows 1 to 4 (linear, attention, kv_cache, scheduler); "
                "update this program or correct the plugin",
                file.string(), kind);
  const std::uint32_t interface_version = interface_version_of(descriptor->kind);
  if (descriptor->interface_version != interface_version)
    throw_error(ErrorKind::plugin,
                "{}: interface_version is {}, this program has {} for its kind; rebuild the plugin "
                "with its headers",
                file.string(), descriptor->interface_version, interface_version);
  Problems problems;
  check_texts(*descriptor, problems);
  check_masks(*descriptor, problems);
  check_schema(*descriptor, problems);
  if (descriptor->create == nullptr) problems.add("create is null, needed is a function");
  if (descriptor->destroy == nullptr) problems.add("destroy is null, needed is a function");
  problems.throw_if_any(ErrorKind::plugin,
                        fmt::format("{}: the descriptor is refused; correct the plugin and rebuild it", file.string()));
}

}  // namespace facet
