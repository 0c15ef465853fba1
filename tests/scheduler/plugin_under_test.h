// Loads a scheduler's shared library as the host does, with the least host table that works.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "facet/abi/plugin.h"
#include "facet/abi/scheduler.h"

namespace facet::test {

using OptionText = std::map<std::string, std::variant<std::int64_t, double, std::string>>;

class PluginUnderTest {
 public:
  PluginUnderTest(const std::string& library, const OptionText& overrides) {
    const std::string file = std::string(FACET_BINARY_DIR) + "/" + folder(library) + "/" + library + ".so";
    // Never unloaded, as in the program.
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    const auto entry = reinterpret_cast<abi::EntryFunction>(dlsym(handle, abi::kEntrySymbol));
    if (entry == nullptr) throw std::runtime_error(file + " has no " + abi::kEntrySymbol);
    descriptor_ = entry();
    host_.size = sizeof host_;
    host_.contract_version = abi::kContractVersion;
    host_.worker_count = 1;
    host_.log = [](void*, abi::LogLevel, const char* text, std::uint64_t size) {
      std::fprintf(stderr, "%.*s\n", static_cast<int>(size), text);
    };
    std::size_t used = 0;
    for (std::uint32_t i = 0; i < descriptor_->option_count; ++i) {
      const abi::OptionSpec& spec = descriptor_->options[i];
      abi::OptionValue value{sizeof value, spec.type, spec.default_integer, spec.default_real, spec.default_text};
      if (const auto found = overrides.find(spec.name); found != overrides.end()) {
        ++used;
        if (const auto* integer = std::get_if<std::int64_t>(&found->second)) value.integer = *integer;
        if (const auto* real = std::get_if<double>(&found->second)) value.real = *real;
        if (const auto* text = std::get_if<std::string>(&found->second)) value.text = text->c_str();
      }
      values_.push_back(value);
    }
    if (used != overrides.size()) throw std::runtime_error(library + ": the test sets an option that does not exist");
    const abi::Options options{sizeof options, descriptor_->option_count, values_.data()};
    void* instance = nullptr;
    std::string error;
    if (descriptor_->create(&host_, &options, &instance, sink(error)) != abi::Status::ok)
      throw std::runtime_error(error);
    scheduler_ = static_cast<abi::Scheduler*>(instance);
  }
  ~PluginUnderTest() {
    if (scheduler_ != nullptr) descriptor_->destroy(scheduler_);
  }
  PluginUnderTest(const PluginUnderTest&) = delete;
  PluginUnderTest& operator=(const PluginUnderTest&) = delete;

  abi::Scheduler& scheduler() const { return *scheduler_; }
  const abi::PluginDescriptor& descriptor() const { return *descriptor_; }

  static abi::TextSink sink(std::string& text) {
    return {&text, [](void* context, const char* line, std::uint64_t size) {
              static_cast<std::string*>(context)->append(line, size);
            }};
  }

  // The example is built beside the tests, so that the program does not find it among its own plugins.
  static const char* folder(const std::string& library) {
    return library == "scheduler_shortest_first" ? "tests/plugins" : "lib/facet/plugins";
  }

 private:
  const abi::PluginDescriptor* descriptor_ = nullptr;
  abi::HostTable host_{};
  std::vector<abi::OptionValue> values_;
  abi::Scheduler* scheduler_ = nullptr;
};

}  // namespace facet::test
