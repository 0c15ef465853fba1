#include "loaded_plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace facet::test {

namespace {

void log(void*, abi::LogLevel, const char*, std::uint64_t) {}

void* allocate(void*, std::uint64_t bytes, std::uint64_t alignment, const char*) {
  void* memory = nullptr;
  return posix_memalign(&memory, alignment < 64 ? 64 : alignment, bytes) == 0 ? memory : nullptr;
}

void deallocate(void*, void* memory, std::uint64_t) {
  std::free(memory);
}

// Even pieces, one a worker, each on a thread of its own.
void parallel_for(void* context, std::int64_t count, std::int64_t grain, void* data, abi::ParallelBody body) {
  const std::int64_t workers = static_cast<const abi::HostTable*>(context)->worker_count;
  const std::int64_t piece = std::max(grain, (count + workers - 1) / workers);
  std::vector<std::thread> threads;
  std::uint32_t worker = 0;
  for (std::int64_t begin = piece; begin < count; begin += piece) {
    const std::int64_t end = std::min(count, begin + piece);
    ++worker;
    threads.emplace_back([=] { body(data, begin, end, worker); });
  }
  if (count > 0) body(data, 0, std::min(count, piece), 0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

std::uint64_t cpu_features() {
  std::uint64_t features = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) features |= abi::kCpuAvx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    features |= abi::kCpuAvx512;
  if (__builtin_cpu_supports("avx512vnni")) features |= abi::kCpuAvx512Vnni;
  if (__builtin_cpu_supports("avx512bf16")) features |= abi::kCpuAvx512Bf16;
#endif
  return features;
}

std::vector<std::pair<std::string, std::uint64_t>> isa_levels() {
  const std::uint64_t all = cpu_features();
  std::vector<std::pair<std::string, std::uint64_t>> levels{{"generic", 0}};
  const std::uint64_t avx2 = abi::kCpuAvx2;
  const std::uint64_t avx512 = avx2 | abi::kCpuAvx512;
  if ((all & avx2) == avx2) levels.emplace_back("avx2", avx2);
  if ((all & avx512) == avx512) levels.emplace_back("avx512", avx512);
  if ((all & avx512) == avx512 && all != avx512) levels.emplace_back("avx512_vnni_bf16", all);
  return levels;
}

TestHost::TestHost(std::uint64_t features, std::uint32_t workers) {
  table_.size = sizeof table_;
  table_.contract_version = abi::kContractVersion;
  table_.context = &table_;
  table_.cpu_features = features;
  table_.worker_count = workers;
  table_.log = log;
  table_.allocate = allocate;
  table_.deallocate = deallocate;
  table_.parallel_for = parallel_for;
}

LoadedPlugin::LoadedPlugin(const std::string& name, const TestHost& host,
                           const std::map<std::string, std::string>& options) {
  const std::string path = std::string(FACET_BINARY_DIR "/lib/facet/plugins/linear_") + name + ".so";
  // Stays loaded: libraries of the host do too.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<abi::EntryFunction>(dlsym(library, abi::kEntrySymbol));
  if (entry == nullptr) throw std::runtime_error(dlerror());
  descriptor_ = entry();
  std::vector<abi::OptionValue> values(descriptor_->option_count);
  std::size_t known = 0;
  for (std::uint32_t i = 0; i < descriptor_->option_count; ++i) {
    const abi::OptionSpec& spec = descriptor_->options[i];
    const auto given = options.find(spec.name);
    if (given != options.end()) ++known;
    values[i] = {sizeof(abi::OptionValue), spec.type, spec.default_integer, spec.default_real, spec.default_text};
    if (given == options.end()) continue;
    if (spec.type == abi::OptionType::text) {
      values[i].text = given->second.c_str();
    } else if (spec.type == abi::OptionType::integer) {
      values[i].integer = std::stoll(given->second);
    } else {
      throw std::runtime_error("tests give options of " + name + " as text or integers");
    }
  }
  if (known != options.size()) throw std::runtime_error("an option that " + name + " does not have");
  const abi::Options all{sizeof(abi::Options), descriptor_->option_count, values.data()};
  void* instance = nullptr;
  Text error;
  if (descriptor_->create(&host.table(), &all, &instance, error.sink()) != abi::Status::ok)
    throw std::runtime_error(error.text);
  linear_ = static_cast<abi::Linear*>(instance);
}

LoadedPlugin::~LoadedPlugin() {
  descriptor_->destroy(linear_);
}

abi::TextSink Text::sink() {
  return {this, [](void* context, const char* line, std::uint64_t size) {
            auto& joined = static_cast<Text*>(context)->text;
            if (!joined.empty()) joined += '\n';
            joined.append(line, size);
          }};
}

}  // namespace facet::test
