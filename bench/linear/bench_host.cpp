#include "bench_host.h"

#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace facet::bench {

namespace {

void log(void*, abi::LogLevel, const char*, std::uint64_t) {}

void* allocate(void*, std::uint64_t bytes, std::uint64_t alignment, const char*) {
  void* memory = nullptr;
  return posix_memalign(&memory, std::max<std::uint64_t>(64, alignment), bytes) == 0 ? memory : nullptr;
}

void deallocate(void*, void* memory, std::uint64_t) {
  std::free(memory);
}

void run_loop(void* context, std::int64_t count, std::int64_t grain, void* data, abi::ParallelBody body) {
  static_cast<BenchHost*>(context)->parallel_for(count, grain, data, body);
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

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

BenchHost::BenchHost(std::uint32_t workers) : worker_seconds_(workers) {
  table_.size = sizeof table_;
  table_.contract_version = abi::kContractVersion;
  table_.context = this;
  table_.cpu_features = cpu_features();
  table_.worker_count = workers;
  table_.log = log;
  table_.allocate = allocate;
  table_.deallocate = deallocate;
  table_.parallel_for = run_loop;
  for (std::uint32_t worker = 1; worker < workers; ++worker) threads_.emplace_back([this, worker] { work(worker); });
}

BenchHost::~BenchHost() {
  stop_ = true;
  ++round_;
  for (std::thread& thread : threads_) thread.join();
}

void BenchHost::work(std::uint32_t worker) {
  for (std::uint64_t seen = 0;;) {
    // Yields once in a while: with more threads than cores a spinning worker would starve the one it waits for.
    for (int spins = 0; round_.load(std::memory_order_acquire) == seen; ++spins)
      if (spins > 20000) std::this_thread::yield();
    ++seen;
    if (stop_) return;
    const std::int64_t begin = piece_ * worker;
    const double start = thread_seconds();
    if (begin < count_) body_(data_, begin, std::min(count_, begin + piece_), worker);
    worker_seconds_[worker] = thread_seconds() - start;
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

void BenchHost::parallel_for(std::int64_t count, std::int64_t grain, void* data, abi::ParallelBody body) {
  const std::int64_t workers = table_.worker_count;
  piece_ = std::max(grain, (count + workers - 1) / workers);
  const double start = thread_seconds();
  if (count <= piece_) {
    if (count > 0) body(data, 0, count, 0);
    const double spent = thread_seconds() - start;
    slowest_seconds_ += spent;
    caller_seconds_ += spent;
    return;
  }
  count_ = count;
  data_ = data;
  body_ = body;
  pending_.store(table_.worker_count - 1, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  body(data, 0, piece_, 0);
  worker_seconds_[0] = thread_seconds() - start;
  for (int spins = 0; pending_.load(std::memory_order_acquire) != 0; ++spins)
    if (spins > 20000) std::this_thread::yield();
  slowest_seconds_ += *std::max_element(worker_seconds_.begin(), worker_seconds_.end());
  caller_seconds_ += thread_seconds() - start;
}

abi::TextSink text_sink(std::string& text) {
  return {&text, [](void* context, const char* line, std::uint64_t size) {
            static_cast<std::string*>(context)->append(line, size).append("\n");
          }};
}

void require_ok(abi::Status status, const std::string& text) {
  if (status != abi::Status::ok) throw std::runtime_error(text);
}

LinearPlugin::LinearPlugin(const std::string& name, const BenchHost& host,
                           const std::map<std::string, std::string>& options) {
  const std::string path = std::string(FACET_PLUGIN_DIR "/linear_") + name + ".so";
  // Never closed: a library stays loaded until exit.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<abi::EntryFunction>(dlsym(library, abi::kEntrySymbol));
  if (entry == nullptr) throw std::runtime_error(path + " has no " + abi::kEntrySymbol);
  descriptor_ = entry();
  std::vector<abi::OptionValue> values;
  for (std::uint32_t i = 0; i < descriptor_->option_count; ++i) {
    const abi::OptionSpec& spec = descriptor_->options[i];
    const auto given = options.find(spec.name);
    values.push_back({sizeof(abi::OptionValue), spec.type, spec.default_integer, spec.default_real,
                      given != options.end() ? given->second.c_str() : spec.default_text});
  }
  const abi::Options all{sizeof(abi::Options), descriptor_->option_count, values.data()};
  void* instance = nullptr;
  std::string error;
  require_ok(descriptor_->create(&host.table(), &all, &instance, text_sink(error)), error);
  linear_ = static_cast<abi::Linear*>(instance);
}

LinearPlugin::~LinearPlugin() {
  descriptor_->destroy(linear_);
}

}  // namespace facet::bench
