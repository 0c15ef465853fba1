// FACET_EXPORT_PLUGIN(Class): the descriptor, the entry function and the build stamp of a plugin.
//
// Class must have
//   static constexpr sdk::PluginInfo kInfo                  name, version, summary, devices, phases, flags
//   Class(sdk::Host host, const sdk::OptionReader& options) may throw
// and may have
//   static constexpr abi::OptionSpec kOptions[]             its option schema
//   static void probe(sdk::Host host, sdk::Reasons& reasons)
#pragma once

#include "facet/abi/layout.h"
#include "facet/sdk/host.h"
#include "facet/sdk/options.h"

#define FACET_TEXT2(x) #x
#define FACET_TEXT(x) FACET_TEXT2(x)

#if defined(__clang__)
#define FACET_SIGNATURE_COMPILER "compiler=clang " FACET_TEXT(__clang_major__) ";"
#elif defined(__GNUC__)
#define FACET_SIGNATURE_COMPILER "compiler=gcc " FACET_TEXT(__GNUC__) ";"
#else
#define FACET_SIGNATURE_COMPILER "compiler=other;"
#endif
#if defined(__x86_64__)
#define FACET_SIGNATURE_ARCH "arch=x86_64;"
#elif defined(__aarch64__)
#define FACET_SIGNATURE_ARCH "arch=aarch64;"
#else
#define FACET_SIGNATURE_ARCH "arch=other;"
#endif
#if defined(_LIBCPP_VERSION)
#define FACET_SIGNATURE_STDLIB "stdlib=libc++;"
#elif defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI
#define FACET_SIGNATURE_STDLIB "stdlib=libstdc++ cxx11;"
#else
#define FACET_SIGNATURE_STDLIB "stdlib=libstdc++ old;"
#endif
#if defined(__SANITIZE_ADDRESS__)
#define FACET_SIGNATURE_SANITIZER "sanitizer=address;"
#elif defined(__SANITIZE_THREAD__)
#define FACET_SIGNATURE_SANITIZER "sanitizer=thread;"
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FACET_SIGNATURE_SANITIZER "sanitizer=address;"
#elif __has_feature(thread_sanitizer)
#define FACET_SIGNATURE_SANITIZER "sanitizer=thread;"
#else
#define FACET_SIGNATURE_SANITIZER "sanitizer=none;"
#endif
#else
#define FACET_SIGNATURE_SANITIZER "sanitizer=none;"
#endif
#if defined(_GLIBCXX_DEBUG)
#define FACET_SIGNATURE_CONTAINERS "containers=debug;"
#else
#define FACET_SIGNATURE_CONTAINERS "containers=plain;"
#endif

// Facts that must match between host and plugin (arch, sanitizer, stdlib, containers) and one for the reader
// (compiler).
#define FACET_BUILD_SIGNATURE                                                                      \
  FACET_SIGNATURE_ARCH FACET_SIGNATURE_SANITIZER FACET_SIGNATURE_STDLIB FACET_SIGNATURE_CONTAINERS \
      FACET_SIGNATURE_COMPILER

namespace facet::sdk {

// magic, contract version, layout hash in 16 hex digits, build signature, NUL.
struct Stamp {
  char text[256];
};

constexpr Stamp make_stamp() {
  Stamp stamp{};
  std::size_t length = 0;
  const auto put = [&](const char* text) {
    while (*text != '\0') stamp.text[length++] = *text++;
  };
  put(abi::kStampMagic);
  put("contract=");
  stamp.text[length++] = static_cast<char>('0' + abi::kContractVersion);
  put(";layout=");
  for (int shift = 60; shift >= 0; shift -= 4)
    stamp.text[length++] = "0123456789abcdef"[(abi::kLayoutHash >> shift) & 15];
  put(";" FACET_BUILD_SIGNATURE);
  return stamp;
}

struct PluginInfo {
  const char* name;
  const char* version;
  const char* summary;
  std::uint32_t devices = static_cast<std::uint32_t>(abi::Device::cpu);
  std::uint32_t phases = abi::kPrefill | abi::kDecode;
  std::uint64_t flags = 0;
};

template <typename Class>
class PluginEntry {
 public:
  static const abi::PluginDescriptor* descriptor() {
    static constexpr abi::PluginDescriptor kDescriptor = make();
    return &kDescriptor;
  }

 private:
  static constexpr abi::PluginDescriptor make() {
    abi::PluginDescriptor made{};
    made.size = sizeof made;
    made.contract_version = abi::kContractVersion;
    made.layout_hash = abi::kLayoutHash;
    made.build_signature = FACET_BUILD_SIGNATURE;
    made.kind = Class::kKind;
    made.interface_version = Class::kInterfaceVersion;
    made.name = Class::kInfo.name;
    made.version = Class::kInfo.version;
    made.summary = Class::kInfo.summary;
    made.devices = Class::kInfo.devices;
    made.phases = Class::kInfo.phases;
    made.flags = Class::kInfo.flags;
    made.options = specs();
    made.option_count = spec_count();
    if constexpr (requires(Host host, Reasons & reasons) { Class::probe(host, reasons); }) {
      made.probe = [](const abi::HostTable* host, abi::TextSink sink) {
        bool available = false;
        const abi::Status status = guarded(sink, [&] {
          Reasons reasons(sink);
          Class::probe(Host(host), reasons);
          available = reasons.ok();
        });
        return status == abi::Status::ok && !available ? abi::Status::unavailable : status;
      };
    }
    made.create = [](const abi::HostTable* host, const abi::Options* options, void** instance, abi::TextSink error) {
      return guarded(error, [&] {
        auto* created = new Class(Host(host), OptionReader(specs(), spec_count(), *options));
        // The host casts back to the abstract class, so the pointer must be one to it.
        *instance = static_cast<typename Class::Interface*>(created);
      });
    };
    made.destroy = [](void* instance) {
      delete static_cast<Class*>(static_cast<typename Class::Interface*>(instance));
    };
    return made;
  }

  static constexpr const abi::OptionSpec* specs() {
    if constexpr (requires { Class::kOptions; }) {
      return Class::kOptions;
    } else {
      return nullptr;
    }
  }
  static constexpr std::uint32_t spec_count() {
    if constexpr (requires { Class::kOptions; }) {
      return static_cast<std::uint32_t>(sizeof(Class::kOptions) / sizeof(Class::kOptions[0]));
    } else {
      return 0;
    }
  }
};

}  // namespace facet::sdk

#define FACET_EXPORT_PLUGIN(Class)                                                                            \
  extern "C" __attribute__((visibility("default"), section(".facet.stamp"), used))                            \
  const ::facet::sdk::Stamp facet_plugin_stamp_v0 = ::facet::sdk::make_stamp();                               \
  extern "C" __attribute__((visibility("default"))) const ::facet::abi::PluginDescriptor* facet_plugin_v0() { \
    return ::facet::sdk::PluginEntry<Class>::descriptor();                                                    \
  }
