// Zero-filled host memory with an account by tag.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "facet/plugin/host_services.h"

namespace facet {

// Thread-safe. Blocks that are still alive when it dies are given back to the system.
class HostMemory {
 public:
  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Null when there is no memory or `alignment` is no power of two (0 means 64, the least there is).
  void* allocate(std::uint64_t bytes, std::uint64_t alignment, const char* tag) noexcept;
  // Null is ignored; memory that allocate() did not give, or another size than it gave, is logged as an error.
  void deallocate(void* memory, std::uint64_t bytes) noexcept;
  // In order of first use.
  std::vector<MemoryAccount> accounts() const;

 private:
  struct Block {
    std::uint64_t bytes;
    std::uint64_t mapped;  // bytes of the mapping; 0: from the heap
    std::size_t account;
  };
  std::size_t account_of(const char* tag);

  mutable std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::vector<MemoryAccount> accounts_;
};

}  // namespace facet
