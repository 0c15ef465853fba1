// A host table with a thread pool, and plugins loaded from the plugin folder.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "facet/abi/linear.h"
#include "facet/abi/plugin.h"

namespace facet::bench {

// What this processor has, as bits of abi::CpuFeature.
std::uint64_t cpu_features();

// Processor time of the calling thread in seconds.
double thread_seconds();

// Workers that wait by spinning, so that starting a loop costs well below a microsecond; for benchmarks only.
class BenchHost {
 public:
  explicit BenchHost(std::uint32_t workers);
  ~BenchHost();
  BenchHost(const BenchHost&) = delete;
  BenchHost& operator=(const BenchHost&) = delete;

  const abi::HostTable& table() const { return table_; }
  // body(begin, end, worker) in even pieces of at least `grain`.
  void parallel_for(std::int64_t count, std::int64_t grain, void* data, abi::ParallelBody body);

  // Processor time that the parallel loops since construction took on their slowest worker, and what the calling thread
  // spent inside them (waiting included). On a machine shared with others, processor time tells what wall time cannot.
  double slowest_seconds() const { return slowest_seconds_; }
  double caller_seconds() const { return caller_seconds_; }

 private:
  void work(std::uint32_t worker);

  abi::HostTable table_{};
  std::vector<std::thread> threads_;
  std::atomic<std::uint64_t> round_{0};
  std::atomic<std::uint32_t> pending_{0};
  std::atomic<bool> stop_{false};
  std::int64_t count_ = 0;
  std::int64_t piece_ = 1;
  void* data_ = nullptr;
  abi::ParallelBody body_ = nullptr;
  std::vector<double> worker_seconds_;  // of the current loop
  double slowest_seconds_ = 0;
  double caller_seconds_ = 0;
};

// An instance of linear_<name>.so; text options by name, others keep their defaults. Throws std::runtime_error.
class LinearPlugin {
 public:
  LinearPlugin(const std::string& name, const BenchHost& host, const std::map<std::string, std::string>& options);
  ~LinearPlugin();
  LinearPlugin(const LinearPlugin&) = delete;
  LinearPlugin& operator=(const LinearPlugin&) = delete;

  abi::Linear& linear() const { return *linear_; }

 private:
  const abi::PluginDescriptor* descriptor_ = nullptr;
  abi::Linear* linear_ = nullptr;
};

// Throws std::runtime_error with the text when the status is not ok.
void require_ok(abi::Status status, const std::string& text);
abi::TextSink text_sink(std::string& text);

}  // namespace facet::bench
