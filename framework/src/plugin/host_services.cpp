#include "facet/plugin/host_services.h"

#include <algorithm>
#include <string_view>

#include "facet/abi/types.h"
#include "facet/base/error.h"
#include "facet/base/limits.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "plugin/host_memory.h"
#include "plugin/worker_team.h"

namespace facet {

namespace {

std::uint32_t thread_count(std::int64_t threads) {
  if (threads < 0 || threads > std::int64_t{kMostThreads})
    throw_error(ErrorKind::config, "engine.threads is {}, possible are 0 (all) to {}", threads, kMostThreads);
  return static_cast<std::uint32_t>(threads == 0 ? available_processors() : threads);
}

}  // namespace

struct HostServices::Impl {
  Impl(std::int64_t threads, const std::string& isa) : team(thread_count(threads)) {
    table.size = sizeof table;
    table.contract_version = abi::kContractVersion;
    table.context = this;
    table.cpu_features = detect_cpu_features(isa);
    table.worker_count = team.workers();
    table.log = [](void*, abi::LogLevel level, const char* text, std::uint64_t size) {
      const auto number = std::min(static_cast<std::uint32_t>(level), static_cast<std::uint32_t>(LogLevel::error));
      const auto ours = static_cast<LogLevel>(number);
      if (text != nullptr && ours >= log_level()) log_text(ours, std::string_view(text, size));
    };
    table.allocate = [](void* context, std::uint64_t bytes, std::uint64_t alignment, const char* tag) {
      return static_cast<Impl*>(context)->memory.allocate(bytes, alignment, tag);
    };
    table.deallocate = [](void* context, void* block, std::uint64_t bytes) {
      static_cast<Impl*>(context)->memory.deallocate(block, bytes);
    };
    table.parallel_for = [](void* context, std::int64_t count, std::int64_t grain, void* data, abi::ParallelBody body) {
      static_cast<Impl*>(context)->team.parallel_for(count, grain, data, body);
    };
  }

  abi::HostTable table{};
  HostMemory memory;
  WorkerTeam team;
};

HostServices::HostServices(std::int64_t threads, const std::string& isa)
    : impl_(std::make_unique<Impl>(threads, isa)) {}
HostServices::~HostServices() = default;

const abi::HostTable* HostServices::table() const {
  return &impl_->table;
}

void* HostServices::allocate(std::uint64_t bytes, std::uint64_t alignment, const char* tag) {
  void* memory = impl_->memory.allocate(bytes, alignment, tag);
  if (memory == nullptr)
    throw_error(ErrorKind::run,
                "no host memory for {} ({} bytes, '{}', alignment {}); 'facet plan' shows what a configuration needs",
                format_bytes(bytes), bytes, tag == nullptr ? "untagged" : tag, alignment);
  return memory;
}

void HostServices::deallocate(void* memory, std::uint64_t bytes) noexcept {
  impl_->memory.deallocate(memory, bytes);
}

std::vector<MemoryAccount> HostServices::accounts() const {
  return impl_->memory.accounts();
}

}  // namespace facet
