// The services behind abi::HostTable: one thread arena, one allocator with an account, one log.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "facet/abi/host.h"
#include "facet/memory/memory_plan.h"

namespace facet {

// Features of this processor, as bits of abi::CpuFeature, masked by `isa` (auto | avx512 | avx2 | generic). Throws
// Error(config) when `isa` asks for more than the processor has.
std::uint64_t detect_cpu_features(const std::string& isa);
// "avx2 avx512 avx512_vnni avx512_bf16" or "generic".
std::string describe_cpu_features(std::uint64_t features);

// Owns threads and memory account; must outlive every plugin instance.
class HostServices {
 public:
  // threads 0: as many as the machine offers to this process. Throws Error(run) when the system does not give so many.
  HostServices(std::int64_t threads, const std::string& isa);
  ~HostServices();
  HostServices(const HostServices&) = delete;
  HostServices& operator=(const HostServices&) = delete;

  const abi::HostTable* table() const;
  // Zero-filled memory, aligned; throws Error(run) naming tag and bytes when there is none.
  void* allocate(std::uint64_t bytes, std::uint64_t alignment, const char* tag);
  void deallocate(void* memory, std::uint64_t bytes) noexcept;
  std::vector<MemoryAccount> accounts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace facet
