// A host table for benchmarks: threads that stay alive between loops and spin for the next one, as the real host's do.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "facet/abi/host.h"
#include "facet/abi/plugin.h"

namespace facet::bench {

class PoolHost {
 public:
  explicit PoolHost(std::uint32_t workers, std::uint64_t features);
  ~PoolHost();
  PoolHost(const PoolHost&) = delete;
  PoolHost& operator=(const PoolHost&) = delete;

  const abi::HostTable* table() const { return &table_; }
  void parallel_for(std::int64_t count, std::int64_t grain, void* data, abi::ParallelBody body);

 private:
  void work(std::uint32_t worker);
  void run_piece(std::uint32_t worker) const;

  abi::HostTable table_{};
  std::vector<std::thread> threads_;
  std::atomic<std::uint64_t> loop_{0};  // number of the current loop
  std::atomic<std::uint32_t> running_{0};
  std::atomic<bool> stop_{false};
  std::int64_t count_ = 0;
  std::int64_t piece_ = 0;
  void* data_ = nullptr;
  abi::ParallelBody body_ = nullptr;
};

}  // namespace facet::bench
