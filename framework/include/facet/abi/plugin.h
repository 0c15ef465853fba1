// The descriptor behind the one function a plugin exports.
#pragma once

#include "facet/abi/host.h"
#include "facet/abi/options.h"
#include "facet/abi/types.h"

namespace facet::abi {

enum class PluginKind : std::uint32_t { linear = 1, attention = 2, kv_cache = 3, scheduler = 4 };

enum Phase : std::uint32_t { kPrefill = 1, kDecode = 2 };

enum PluginFlag : std::uint64_t {
  kGraphSafe = 1u << 0,       // run() may be captured in a device graph and replayed
  kDeterministic = 1u << 1,   // the same call gives the same bits
  kBatchInvariant = 1u << 2,  // a row's result does not depend on the other rows of the call
  kNeedsPack = 1u << 3,       // linear: reads weights only from its packed form
  kRunReentrant = 1u << 4,    // run() may be called from several threads at once, with different workspaces
  // Linear, attention: create(), supports(), layouts() and plan() work where probe() says unavailable, and plan() gives
  // the sizes that it gives where probe() says ok
  kPlansWithoutDevice = 1u << 5,
};
inline constexpr std::uint64_t kKnownPluginFlags = (1u << 6) - 1;

// Constant for the life of the library. Texts end in NUL.
struct PluginDescriptor {
  std::uint32_t size;
  std::uint32_t contract_version;
  std::uint64_t layout_hash;    // abi/layout.h as the plugin saw it
  const char* build_signature;  // "key=value;" facts of the build, see framework/README.md rule 2.3
  PluginKind kind;
  std::uint32_t interface_version;  // of that kind, see k*InterfaceVersion
  const char* name;                 // snake_case, unique in its kind
  const char* version;              // "major.minor.patch"
  const char* summary;              // one line
  std::uint32_t devices;            // mask of Device
  std::uint32_t phases;             // mask of Phase
  std::uint64_t flags;              // mask of PluginFlag
  const OptionSpec* options;
  std::uint32_t option_count;
  std::uint32_t reserved;
  // Can this machine run the plugin at all? Writes every reason when not. Optional: null means always.
  Status (*probe)(const HostTable* host, TextSink reasons);
  // Makes an instance: *instance points to the abstract class of the kind. The host table and the library outlive it.
  Status (*create)(const HostTable* host, const Options* options, void** instance, TextSink error);
  void (*destroy)(void* instance);
};

// The exported function. Returns the same constant pointer every time.
using EntryFunction = const PluginDescriptor* (*)();
inline constexpr const char* kEntrySymbol = "facet_plugin_v0";

// A section of the file that holds the build signature, so that a wrong build is refused before the loader maps it
// and before any of its code (static constructors included) can run.
inline constexpr const char* kStampSection = ".facet.stamp";
inline constexpr const char* kStampMagic = "facet-plugin-stamp;";

}  // namespace facet::abi
