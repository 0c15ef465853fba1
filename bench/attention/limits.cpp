#include "limits.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace facet::bench {

namespace {

// Far more than any last-level cache, read in short loops: the best of many is one that nothing interrupted.
constexpr std::int64_t kMemoryBytes = std::int64_t{256} << 20;
constexpr std::int64_t kReadBytes = std::int64_t{16} << 20;
constexpr std::int64_t kFmaRounds = 1 << 17;
constexpr int kRounds = 48;

struct Probe {
  const std::byte* memory = nullptr;
  std::atomic<std::uint64_t> sink{0};
};

#if defined(__x86_64__)
__attribute__((target("avx2"))) std::uint64_t sum_bytes(const std::byte* from, std::int64_t bytes) {
  __m256i sums[4] = {};
  for (std::int64_t i = 0; i + 128 <= bytes; i += 128) {
    for (int j = 0; j < 4; ++j) {
      const auto* at = reinterpret_cast<const __m256i*>(from + i + 32 * j);
      sums[j] = _mm256_add_epi64(sums[j], _mm256_loadu_si256(at));
    }
  }
  const __m256i sum = _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sum, 0) + _mm256_extract_epi64(sum, 1) +
                                    _mm256_extract_epi64(sum, 2) + _mm256_extract_epi64(sum, 3));
}

// Twelve chains cover latency 4 on two ports with room to spare.
__attribute__((target("avx512f"))) float fma_avx512() {
  __m512 sums[12];
  for (auto& sum : sums) sum = _mm512_set1_ps(1.0f);
  const __m512 factor = _mm512_set1_ps(0.999999f);
  const __m512 addend = _mm512_set1_ps(1e-6f);
  for (std::int64_t round = 0; round < kFmaRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, addend);
  }
  float total[16];
  __m512 all = sums[0];
  for (int i = 1; i < 12; ++i) all = _mm512_add_ps(all, sums[i]);
  _mm512_storeu_ps(total, all);
  return total[0];
}

__attribute__((target("avx2,fma"))) float fma_avx2() {
  __m256 sums[12];
  for (auto& sum : sums) sum = _mm256_set1_ps(1.0f);
  const __m256 factor = _mm256_set1_ps(0.999999f);
  const __m256 addend = _mm256_set1_ps(1e-6f);
  for (std::int64_t round = 0; round < kFmaRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, addend);
  }
  float total[8];
  __m256 all = sums[0];
  for (int i = 1; i < 12; ++i) all = _mm256_add_ps(all, sums[i]);
  _mm256_storeu_ps(total, all);
  return total[0];
}
#else
std::uint64_t sum_bytes(const std::byte* from, std::int64_t bytes) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(from);
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < bytes / 8; ++i) sum += words[i];
  return sum;
}
#endif

// A plain chain, for processors without the vectors above: 4 FLOP a round and chain.
float fma_plain() {
  float sums[16];
  std::fill(sums, sums + 16, 1.0f);
  for (std::int64_t round = 0; round < kFmaRounds; ++round) {
    for (float& sum : sums) sum = sum * 0.999999f + 1e-6f;
  }
  return sums[0];
}

void read_piece(void* data, std::int64_t begin, std::int64_t end, std::uint32_t) {
  auto& probe = *static_cast<Probe*>(data);
  probe.sink += sum_bytes(probe.memory + (begin << 20), (end - begin) << 20);
}

void fma_piece(void* data, std::int64_t begin, std::int64_t end, std::uint32_t) {
  auto& probe = *static_cast<Probe*>(data);
  for (std::int64_t i = begin; i < end; ++i) {
#if defined(__x86_64__)
    const std::uint64_t features = machine_features();
    const float result = (features & abi::kCpuAvx512) != 0 ? fma_avx512()
                         : (features & abi::kCpuAvx2) != 0 ? fma_avx2()
                                                           : fma_plain();
#else
    const float result = fma_plain();
#endif
    probe.sink += result > 0.0f ? 1 : 0;
  }
}

// Shortest of kRounds loops over [0, count), in seconds; each reads the next part of the memory, if there is any.
double best_seconds(PoolHost& host, std::int64_t count, Probe& probe, abi::ParallelBody body) {
  double best = 1e30;
  const std::byte* first = probe.memory;
  for (int round = 0; round < kRounds; ++round) {
    if (first != nullptr) probe.memory = first + round * kReadBytes % kMemoryBytes;
    const auto start = std::chrono::steady_clock::now();
    host.parallel_for(count, 1, &probe, body);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

std::uint64_t machine_features() {
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

double read_bandwidth(PoolHost& host) {
  const std::vector<std::byte> memory(kMemoryBytes, std::byte{1});
  Probe probe;
  probe.memory = memory.data();
  return static_cast<double>(kReadBytes) / best_seconds(host, kReadBytes >> 20, probe, read_piece) / 1e9;
}

double fma_peak(PoolHost& host) {
  Probe probe;
  const std::uint64_t features = machine_features();
  const double lanes = (features & abi::kCpuAvx512) != 0 ? 12.0 * 16.0 : (features & abi::kCpuAvx2) != 0 ? 96.0 : 16.0;
  const auto workers = static_cast<double>(host.table()->worker_count);
  return workers * lanes * 2.0 * static_cast<double>(kFmaRounds) /
         best_seconds(host, host.table()->worker_count, probe, fma_piece) / 1e9;
}

}  // namespace facet::bench
