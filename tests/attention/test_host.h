// A host table with plain threads, and plugins loaded through their entry symbol: what a plugin needs, nothing more.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "facet/abi/attention.h"
#include "facet/abi/plugin.h"

namespace facet::test {

// Features of this processor, as the host would report them.
inline std::uint64_t machine_features() {
  std::uint64_t features = 0;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) features |= abi::kCpuAvx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    features |= abi::kCpuAvx512;
  }
#endif
  return features;
}

struct IsaLevel {
  const char* name;
  std::uint64_t features;
};

// The levels this machine can run, widest first; generic is always there.
inline std::vector<IsaLevel> isa_levels() {
  std::vector<IsaLevel> levels;
  const std::uint64_t features = machine_features();
  if ((features & abi::kCpuAvx512) != 0) levels.push_back({"avx512", abi::kCpuAvx512 | abi::kCpuAvx2});
  if ((features & abi::kCpuAvx2) != 0) levels.push_back({"avx2", abi::kCpuAvx2});
  levels.push_back({"generic", 0});
  return levels;
}

class TestHost {
 public:
  explicit TestHost(std::uint32_t workers, std::uint64_t features = machine_features()) {
    table_.size = sizeof table_;
    table_.contract_version = abi::kContractVersion;
    table_.context = this;
    table_.cpu_features = features;
    table_.worker_count = workers;
    table_.log = [](void*, abi::LogLevel, const char*, std::uint64_t) {};
    table_.allocate = [](void*, std::uint64_t bytes, std::uint64_t alignment, const char*) {
      void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
      if (memory != nullptr) std::memset(memory, 0, bytes);
      return memory;
    };
    table_.deallocate = [](void*, void* memory, std::uint64_t) { std::free(memory); };
    table_.parallel_for = run;
  }
  TestHost(const TestHost&) = delete;
  TestHost& operator=(const TestHost&) = delete;

  const abi::HostTable* table() const { return &table_; }

 private:
  static void run(void* context, std::int64_t count, std::int64_t grain, void* data, abi::ParallelBody body) {
    const std::int64_t workers = static_cast<TestHost*>(context)->table_.worker_count;
    const std::int64_t piece = std::max(grain, (count + workers - 1) / workers);
    std::vector<std::thread> threads;
    for (std::int64_t worker = 1; worker * piece < count; ++worker) {
      threads.emplace_back(body, data, worker * piece, std::min(count, (worker + 1) * piece),
                           static_cast<std::uint32_t>(worker));
    }
    if (count > 0) body(data, 0, std::min(count, piece), 0);
    for (std::thread& thread : threads) thread.join();
  }

  abi::HostTable table_{};
};

// Lines a plugin wrote.
class Lines {
 public:
  abi::TextSink sink() {
    return {&lines, [](void* context, const char* text, std::uint64_t size) {
              static_cast<std::vector<std::string>*>(context)->emplace_back(text, size);
            }};
  }
  std::string joined() const {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
  }
  std::vector<std::string> lines;
};

// Instance of an attention plugin, by file stem ("attention_flash").
class AttentionPlugin {
 public:
  AttentionPlugin(const std::string& stem, const TestHost& host, const std::map<std::string, std::int64_t>& set = {}) {
    const std::string file = std::string(FACET_BINARY_DIR) + "/lib/facet/plugins/" + stem + ".so";
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays loaded, as with the real host
    if (library == nullptr) throw std::runtime_error(dlerror());
    descriptor_ = reinterpret_cast<abi::EntryFunction>(dlsym(library, abi::kEntrySymbol))();
    std::vector<abi::OptionValue> values;
    for (std::uint32_t i = 0; i < descriptor_->option_count; ++i) {
      const abi::OptionSpec& spec = descriptor_->options[i];
      const auto found = set.find(spec.name);
      values.push_back({sizeof(abi::OptionValue), spec.type, found == set.end() ? spec.default_integer : found->second,
                        spec.default_real, spec.default_text});
    }
    const abi::Options options{sizeof(abi::Options), descriptor_->option_count, values.data()};
    Lines error;
    void* instance = nullptr;
    if (descriptor_->create(host.table(), &options, &instance, error.sink()) != abi::Status::ok) {
      throw std::runtime_error(error.joined());
    }
    instance_ = static_cast<abi::Attention*>(instance);
  }
  ~AttentionPlugin() { descriptor_->destroy(instance_); }
  AttentionPlugin(const AttentionPlugin&) = delete;
  AttentionPlugin& operator=(const AttentionPlugin&) = delete;

  abi::Attention* operator->() const { return instance_; }
  const abi::PluginDescriptor& descriptor() const { return *descriptor_; }

 private:
  const abi::PluginDescriptor* descriptor_ = nullptr;
  abi::Attention* instance_ = nullptr;
};

}  // namespace facet::test
