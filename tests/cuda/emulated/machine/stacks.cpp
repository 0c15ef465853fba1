#include "stacks.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

namespace facet::emulated {

namespace {

constexpr std::size_t kStackBytes = 64 << 10;
constexpr std::size_t kSlabStacks = 256;
constexpr std::size_t kPatternBytes = 256;
constexpr int kPattern = 0x5c;

struct Pool {
  std::vector<unsigned char*> free;  // lower ends
  bool overflowed = false;
};

// Without an end: fibers of a test that failed give their stacks back late.
Pool& pool() {
  static auto* const made = new Pool;
  return *made;
}

void grow(Pool& stacks) {
  void* slab = mmap(nullptr, kSlabStacks * kStackBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (slab == MAP_FAILED) throw std::bad_alloc();
  stacks.free.reserve(stacks.free.capacity() + kSlabStacks);
  for (std::size_t i = 0; i < kSlabStacks; ++i) {
    unsigned char* stack = static_cast<unsigned char*>(slab) + i * kStackBytes;
    std::memset(stack, kPattern, kPatternBytes);
    stacks.free.push_back(stack);
  }
}

}  // namespace

boost::context::stack_context PooledStack::allocate() {
  Pool& stacks = pool();
  if (stacks.free.empty()) grow(stacks);
  boost::context::stack_context made;
  made.size = kStackBytes;
  made.sp = stacks.free.back() + kStackBytes;
  stacks.free.pop_back();
  return made;
}

void PooledStack::deallocate(boost::context::stack_context& stack) noexcept {
  unsigned char* lower = static_cast<unsigned char*>(stack.sp) - kStackBytes;
  for (std::size_t i = 0; i < kPatternBytes; ++i) {
    if (lower[i] == kPattern) continue;
    pool().overflowed = true;
    std::memset(lower, kPattern, kPatternBytes);
    break;
  }
  pool().free.push_back(lower);
}

bool stack_overflowed() {
  const bool was = pool().overflowed;
  pool().overflowed = false;
  return was;
}

}  // namespace facet::emulated
