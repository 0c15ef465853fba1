#include "pool_host.h"

#include <algorithm>

namespace facet::bench {

namespace {

// About 100 us: longer than a gap between two loops of one benchmark.
constexpr std::int64_t kSpins = 100000;

}  // namespace

PoolHost::PoolHost(std::uint32_t workers, std::uint64_t features) {
  table_.size = sizeof table_;
  table_.contract_version = abi::kContractVersion;
  table_.context = this;
  table_.cpu_features = features;
  table_.worker_count = workers;
  table_.log = [](void*, abi::LogLevel, const char*, std::uint64_t) {};
  table_.allocate = [](void*, std::uint64_t, std::uint64_t, const char*) -> void* { return nullptr; };
  table_.deallocate = [](void*, void*, std::uint64_t) {};
  table_.parallel_for = [](void* context, std::int64_t count, std::int64_t grain, void* data, abi::ParallelBody body) {
    static_cast<PoolHost*>(context)->parallel_for(count, grain, data, body);
  };
  for (std::uint32_t worker = 1; worker < workers; ++worker) threads_.emplace_back([this, worker] { work(worker); });
}

PoolHost::~PoolHost() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
}

void PoolHost::run_piece(std::uint32_t worker) const {
  const std::int64_t begin = worker * piece_;
  if (begin < count_) body_(data_, begin, std::min(count_, begin + piece_), worker);
}

void PoolHost::parallel_for(std::int64_t count, std::int64_t grain, void* data, abi::ParallelBody body) {
  const std::int64_t workers = table_.worker_count;
  count_ = count;
  piece_ = std::max(grain, (count + workers - 1) / workers);
  data_ = data;
  body_ = body;
  running_ = static_cast<std::uint32_t>(workers - 1);
  loop_.fetch_add(1);
  run_piece(0);
  for (std::int64_t idle = 0; running_.load() != 0; ++idle) {
    if (idle > kSpins) std::this_thread::yield();
  }
}

void PoolHost::work(std::uint32_t worker) {
  std::uint64_t seen = 0;
  std::int64_t idle = 0;
  while (!stop_.load()) {
    if (loop_.load() == seen) {
      if (++idle > kSpins) std::this_thread::yield();
      continue;
    }
    idle = 0;
    ++seen;
    run_piece(worker);
    running_.fetch_sub(1);
  }
}

}  // namespace facet::bench
