// What the machine knows of a running cluster. Shared by its parts; no part of its interface.
#pragma once

#include <array>
#include <boost/context/fiber.hpp>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "machine.h"

namespace facet::emulated {

inline constexpr int kLanes = 32;
inline constexpr int kNamedBarriers = 16;
// A 32-bit shared address: block of the cluster, then offset. An offset has 18 bits at most, as in wgmma's descriptor.
inline constexpr int kRankShift = 24;
inline constexpr std::uint32_t kOffsetMask = (1u << kRankShift) - 1;
inline constexpr std::uint32_t kMostOffset = (1u << 18) - 1;
inline constexpr std::uint32_t kSystemBytes = 1024;  // the system's, at the beginning of a block's shared memory

struct Block;
struct Cluster;
struct Warp;

// The state of a generator: splitmix64.
struct Random {
  std::uint64_t state;
  std::uint64_t next() {
    std::uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(next() % count); }
  bool one_in(unsigned count) { return count != 0 && below(count) == 0; }
};

struct Thread {
  Warp* warp = nullptr;
  int lane = 0;
  unsigned index = 0;  // in the block
  boost::context::fiber fiber;
  boost::context::fiber scheduler;
  bool done = false;
  bool predecessor_awaited = false;
  bool cluster_arrived = false;  // at the barrier of the cluster, and has not waited since
  std::uint64_t cluster_phase = 0;
  std::uint64_t copy_group = 0;                      // of copies past the registers, open
  std::string (*describe)(const Thread&) = nullptr;  // what it waits for
  std::uint32_t barrier = 0;                         // where it waits, and for what
  std::uint32_t parity = 0;
};

// Lanes of a warp that come together for one instruction.
struct Meeting {
  std::uint32_t mask;
  const char* instruction;
  std::uint64_t operand;  // the same for all
  std::uint32_t arrived = 0;
  std::array<void*, kLanes> data{};
};

// The registers that a warp's products add to, while products are under way: what they hold in the end.
struct Accumulator {
  std::array<std::uint32_t*, kLanes> registers{};
  std::array<std::vector<std::uint32_t>, kLanes> values;
  std::uint64_t last_group = 0;
};

struct Warp {
  Block* block = nullptr;
  int index = 0;
  std::array<Thread*, kLanes> lanes{};  // null past the block's last thread
  std::list<Meeting> meetings;
  std::uint64_t priority = 0;
  // Warpgroup products.
  bool product_fence = false;
  std::uint64_t products = 0;
  std::uint64_t open_group = 0;
  std::list<Accumulator> accumulators;
};

// In shared memory, 8 bytes each; their state lies here, their place there holds a pattern.
struct Mbarrier {
  std::uint32_t arrivals = 0;  // of a phase
  std::uint32_t left = 0;      // of the phase under way
  std::int64_t bytes = 0;      // that it waits for; copies may come before they are announced
  std::uint64_t phase = 0;
  std::vector<Thread*> waiting;
};

struct NamedBarrier {
  unsigned expected = 0;
  unsigned arrived = 0;
  std::uint64_t phase = 0;
  std::vector<Thread*> waiting;
};

struct Block {
  Cluster* cluster = nullptr;
  unsigned index = 0;  // in the grid
  std::uint32_t rank = 0;
  std::uint32_t bytes = 0;  // of shared memory, from address 0 on
  unsigned char* memory = nullptr;
  std::vector<Warp> warps;
  std::unordered_map<std::uint32_t, Mbarrier> barriers;  // by offset
  std::array<NamedBarrier, kNamedBarriers> named;
  // What warpgroup products the first warp of a group started, for the other three to agree with.
  std::vector<std::vector<std::uint64_t>> product_log;
  unsigned alive = 0;
  bool flag = false;
};

// Something that the machine does at a time of its own.
struct Work {
  const void* owner =
      nullptr;           // a warp for its products, a thread for its copies past the registers; else nobody waits
  bool ordered = false;  // after the owner's earlier ones
  std::uint64_t group = 0;
  virtual ~Work() = default;
  virtual void run() = 0;
};

struct Cluster {
  Launch launch{};
  std::vector<Block> blocks;
  std::vector<Thread> threads;
  std::vector<Thread*> runnable;
  std::vector<std::unique_ptr<Work>> work;
  unsigned alive = 0;
  unsigned cluster_arrived = 0;
  std::uint64_t cluster_phase = 0;
  std::vector<Thread*> cluster_waiting;
  std::string fault;  // of the thread that ran last
  Random random{0};
  unsigned work_chance = 0;   // work is done at one step in so many; 0: when no thread can run
  unsigned yield_chance = 0;  // an instruction gives others their turn one time in so many
  int order = 0;              // of the threads, see pick()
};

// The thread that is running; null between two.
extern Thread* current;
Thread& self();
inline Block& block_of(const Thread& thread) {
  return *thread.warp->block;
}
inline Cluster& cluster_of(const Thread& thread) {
  return *thread.warp->block->cluster;
}

// Ends the run.
[[noreturn]] void fail(const std::string& what);
std::string name_of(const Thread& thread);
std::string name_of(const Warp& warp);
std::string name_of_address(std::uint32_t address);

// Gives control back until wake(); `describe` is for the report of a deadlock.
void wait_for(std::string (*describe)(const Thread&));
void wake(Thread& thread);
void wake_all(std::vector<Thread*>& threads);
// Now and then gives others their turn.
void maybe_yield();

void add_work(std::unique_ptr<Work> work);
// Does all of an owner's work of groups before `group`, now.
void finish_work(const void* owner, std::uint64_t group);

// Lanes of `mask` come together; the last to come calls act(data of all lanes) before any goes on.
void meet(std::uint32_t mask, const char* instruction, std::uint64_t operand, void* data,
          const std::function<void(const std::array<void*, kLanes>&)>& act);

// A place in shared memory of any block of the cluster. `aligned`: what the address must be a multiple of.
Block& block_at(const Cluster& cluster, std::uint32_t address);
unsigned char* place_at(Cluster& cluster, std::uint32_t address, std::uint32_t bytes, std::uint32_t aligned,
                        const char* what);
Mbarrier& barrier_at(Cluster& cluster, std::uint32_t address, const char* what);
void complete_bytes(Cluster& cluster, std::uint32_t address, std::uint32_t bytes);
void thread_ended(Thread& thread);  // what the barriers must know

}  // namespace facet::emulated
