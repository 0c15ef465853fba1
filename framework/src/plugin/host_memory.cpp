#include "plugin/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "facet/base/log.h"

namespace facet {

namespace {

constexpr std::uint64_t kCacheLine = 64;
constexpr std::uint64_t kPage = 4096;
// From here on pages come straight from the kernel, which fills them with zeros only when they are touched.
constexpr std::uint64_t kMapFrom = 256 * 1024;
// Two huge pages: below that the aligned start would waste as much as it gains.
constexpr std::uint64_t kHugeFrom = 4 * 1024 * 1024;
constexpr std::uint64_t kHugePage = 2 * 1024 * 1024;
constexpr std::uint64_t kLimit = std::uint64_t{1} << 47;  // user address space of x86_64

constexpr std::uint64_t up(std::uint64_t value, std::uint64_t step) {
  return (value + step - 1) / step * step;
}

// A mapping of `size` bytes (whole pages) at a multiple of `alignment`, by mapping more and cutting both ends.
void* map_zeros(std::uint64_t size, std::uint64_t alignment) {
  const std::uint64_t slack = alignment > kPage ? alignment : 0;
  void* raw = ::mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<char*>(raw);
  if (slack > 0) {
    const std::uint64_t head =
        up(reinterpret_cast<std::uintptr_t>(begin), alignment) - reinterpret_cast<std::uintptr_t>(begin);
    if (head > 0) ::munmap(begin, head);
    if (slack > head) ::munmap(begin + head + size, slack - head);
    begin += head;
  }
  if (size >= kHugeFrom) ::madvise(begin, size, MADV_HUGEPAGE);  // advice only: without huge pages it is just slower
  return begin;
}

void release(void* memory, std::uint64_t mapped) {
  if (mapped > 0) {
    ::munmap(memory, mapped);
  } else {
    std::free(memory);
  }
}

}  // namespace

HostMemory::~HostMemory() {
  for (const auto& [memory, block] : blocks_) release(memory, block.mapped);
}

std::size_t HostMemory::account_of(const char* tag) {
  for (std::size_t i = 0; i < accounts_.size(); ++i) {
    if (accounts_[i].tag == tag) return i;
  }
  accounts_.push_back({tag, 0, 0});
  return accounts_.size() - 1;
}

void* HostMemory::allocate(std::uint64_t bytes, std::uint64_t alignment, const char* tag) noexcept {
  if ((alignment & (alignment - 1)) != 0 || bytes > kLimit || alignment > kLimit) return nullptr;
  alignment = std::max(alignment, kCacheLine);
  void* memory = nullptr;
  std::uint64_t mapped = 0;
  if (bytes >= kMapFrom) {
    mapped = up(bytes, kPage);
    memory = map_zeros(mapped, bytes >= kHugeFrom ? std::max(alignment, kHugePage) : alignment);
  } else {
    const std::uint64_t size = up(std::max<std::uint64_t>(bytes, 1), alignment);
    memory = std::aligned_alloc(alignment, size);
    if (memory != nullptr) std::memset(memory, 0, size);
  }
  if (memory == nullptr) return nullptr;
  try {
    const std::lock_guard lock(mutex_);
    const std::size_t account = account_of(tag == nullptr ? "untagged" : tag);
    blocks_[memory] = {bytes, mapped, account};
    MemoryAccount& kept = accounts_[account];
    kept.bytes += bytes;
    kept.peak_bytes = std::max(kept.peak_bytes, kept.bytes);
  } catch (const std::bad_alloc&) {
    release(memory, mapped);
    return nullptr;
  }
  return memory;
}

void HostMemory::deallocate(void* memory, std::uint64_t bytes) noexcept {
  if (memory == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(memory);
  if (found == blocks_.end()) {
    log(LogLevel::error, "deallocate: {} bytes at {} are not from this host; ignored", bytes, memory);
    return;
  }
  const Block block = found->second;
  if (block.bytes != bytes)
    log(LogLevel::error, "deallocate: {} bytes given back of a block of {} ('{}'); the whole block is freed", bytes,
        block.bytes, accounts_[block.account].tag);
  accounts_[block.account].bytes -= block.bytes;
  blocks_.erase(found);
  release(memory, block.mapped);
}

std::vector<MemoryAccount> HostMemory::accounts() const {
  const std::lock_guard lock(mutex_);
  return accounts_;
}

}  // namespace facet
