#include "machine_limits.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "limit_kernels.h"

namespace facet::bench {

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

#if defined(__x86_64__)

constexpr std::int64_t kReadBytes = 512ll << 20;  // far beyond any cache

struct Buffer {
  Buffer() {
    void* memory = mmap(nullptr, kReadBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    madvise(memory, kReadBytes, MADV_HUGEPAGE);
    std::memset(memory, 1, kReadBytes);
    data = static_cast<const std::uint8_t*>(memory);
  }
  ~Buffer() {
    if (data != nullptr) munmap(const_cast<std::uint8_t*>(data), kReadBytes);
  }
  const std::uint8_t* data = nullptr;
};

// Best rate of `tries` runs on all workers; `work` is what one worker does in one run.
double best_rate(BenchHost& host, Clock clock, int tries, double work, abi::ParallelBody body) {
  double best = 0;
  for (int i = 0; i < tries; ++i) {
    const Stopwatch watch(host, clock);
    host.parallel_for(host.table().worker_count, 1, nullptr, body);
    best = std::max(best, work * host.table().worker_count / watch.elapsed());
  }
  return best / 1e9;
}

double measure_read_gbps(BenchHost& host, Clock clock, int tries) {
  if ((host.table().cpu_features & abi::kCpuAvx512) == 0) return 0;
  const Buffer buffer;
  if (buffer.data == nullptr) return 0;
  double best = 0;
  for (int i = 0; i < tries; ++i)
    best = std::max(best, static_cast<double>(kReadBytes) / read_seconds(host, clock, buffer.data, kReadBytes));
  return best / 1e9;
}

#endif

}  // namespace

Stopwatch::Stopwatch(const BenchHost& host, Clock clock)
    : host_(host),
      clock_(clock),
      wall_(now()),
      thread_(thread_seconds()),
      slowest_(host.slowest_seconds()),
      caller_(host.caller_seconds()) {}

double Stopwatch::elapsed() const {
  if (clock_ == Clock::wall) return now() - wall_;
  // Outside loops only the caller works; inside, the slowest worker counts.
  const double serial = thread_seconds() - thread_ - (host_.caller_seconds() - caller_);
  return serial + host_.slowest_seconds() - slowest_;
}

double read_seconds([[maybe_unused]] BenchHost& host, [[maybe_unused]] Clock clock, [[maybe_unused]] const void* data,
                    [[maybe_unused]] std::uint64_t bytes) {
#if defined(__x86_64__)
  if ((host.table().cpu_features & abi::kCpuAvx512) == 0) return 0;
  const Stopwatch watch(host, clock);
  host.parallel_for(static_cast<std::int64_t>(bytes / 4096), 1, const_cast<void*>(data), read_pages);
  return watch.elapsed();
#else
  return 0;
#endif
}

MachineLimits measure_limits([[maybe_unused]] BenchHost& host, [[maybe_unused]] Clock clock) {
  MachineLimits limits;
#if defined(__x86_64__)
  limits.read_gbps = measure_read_gbps(host, clock, 8);
  constexpr double kInstructions = static_cast<double>(kPeakRounds) * kPeakChains;
  const std::uint64_t features = host.table().cpu_features;
  if ((features & abi::kCpuAvx512) != 0) limits.fma_gops = best_rate(host, clock, 8, kInstructions * 32, run_fma);
  if ((features & abi::kCpuAvx512Vnni) != 0)
    limits.vnni_gops = best_rate(host, clock, 8, kInstructions * 128, run_vnni);
  if ((features & abi::kCpuAvx512Bf16) != 0) limits.bf16_gops = best_rate(host, clock, 8, kInstructions * 64, run_bf16);
#endif
  return limits;
}

}  // namespace facet::bench
