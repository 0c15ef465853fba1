#include "facet/measure/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

namespace facet {
namespace {

// 64 bytes a load, four independent sums: enough loads in flight without intrinsics, on any ISA the compiler targets.
using Lanes = std::uint64_t __attribute__((vector_size(64)));
constexpr std::int64_t kBlock = 4 * 64;

std::uint64_t sum_of(const unsigned char* data, std::int64_t bytes) {
  Lanes sums[4] = {};
  for (std::int64_t at = 0; at + kBlock <= bytes; at += kBlock) {
    for (int i = 0; i < 4; ++i) {
      Lanes value;
      std::memcpy(&value, data + at + i * 64, sizeof value);
      sums[i] += value;
    }
  }
  std::uint64_t total = 0;
  for (const Lanes& sum : sums) {
    for (int i = 0; i < 8; ++i) total += sum[i];
  }
  return total;
}

}  // namespace

std::vector<double> measure_read_bandwidth(std::int64_t threads, std::int64_t bytes, std::int64_t repeats) {
  threads = std::max<std::int64_t>(threads, 1);
  const std::int64_t part = std::max(bytes / threads / kBlock * kBlock, kBlock);
  const auto buffer = std::make_unique_for_overwrite<unsigned char[]>(static_cast<std::size_t>(part * threads));
  std::atomic<std::uint64_t> sink{0};
  std::vector<double> rates;
  std::chrono::steady_clock::time_point begin;
  // Runs once whenever all threads have arrived: the end of one pass is the beginning of the next.
  const auto lap = [&]() noexcept {
    const auto now = std::chrono::steady_clock::now();
    if (begin != std::chrono::steady_clock::time_point{})
      rates.push_back(static_cast<double>(part * threads) / std::chrono::duration<double>(now - begin).count());
    begin = now;
  };
  rates.reserve(static_cast<std::size_t>(repeats) + 1);
  std::barrier barrier(threads, lap);
  const auto read = [&](std::int64_t index) {
    unsigned char* own = buffer.get() + index * part;
    // Written by its reader, so that pages exist and lie near it.
    std::memset(own, static_cast<int>(index + 1), static_cast<std::size_t>(part));
    barrier.arrive_and_wait();
    for (std::int64_t pass = 0; pass <= repeats; ++pass) {
      sink += sum_of(own, part);
      barrier.arrive_and_wait();
    }
  };
  {
    std::vector<std::jthread> workers;
    for (std::int64_t index = 1; index < threads; ++index) workers.emplace_back(read, index);
    read(0);
  }
  rates.erase(rates.begin());
  return rates;
}

}  // namespace facet
