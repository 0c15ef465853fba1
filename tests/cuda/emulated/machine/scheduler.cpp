// Who runs next, and the report when nobody can.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "stacks.h"
#include "state.h"

namespace facet::emulated {

Thread* current = nullptr;

namespace {

constexpr int kShuffleSteps = 4096;  // after so many steps warps get new priorities
constexpr std::size_t kCandidates = 6;
constexpr int kUnwritten = 0xff;  // NaN, as float and as bf16
constexpr std::uint32_t kTail = 1024;
constexpr int kTailPattern = 0x7f;

std::uint64_t run_seed = 0;
std::uint64_t run_count = 0;
std::uint64_t good_runs = 0;

// Shared memory of the blocks of a cluster, used again by the next.
class Memories {
 public:
  explicit Memories(std::uint32_t bytes, unsigned blocks) : bytes_(bytes) {
    for (unsigned i = 0; i < blocks; ++i)
      memory_.emplace_back(static_cast<unsigned char*>(std::aligned_alloc(1024, (bytes + kTail + 1023) / 1024 * 1024)));
  }
  unsigned char* fresh(unsigned block) {
    std::memset(memory_[block].get(), kUnwritten, bytes_);
    std::memset(memory_[block].get() + bytes_, kTailPattern, kTail);
    return memory_[block].get();
  }
  bool tail_intact(unsigned block) const {
    const unsigned char* tail = memory_[block].get() + bytes_;
    return std::all_of(tail, tail + kTail, [](unsigned char byte) { return byte == kTailPattern; });
  }

 private:
  struct Free {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };
  std::uint32_t bytes_;
  std::vector<std::unique_ptr<unsigned char, Free>> memory_;
};

void set_up(Cluster& cluster, Memories& memories, unsigned index) {
  const Launch& launch = cluster.launch;
  const unsigned warps = (launch.threads + kLanes - 1) / kLanes;
  cluster.blocks = std::vector<Block>(launch.cluster);
  cluster.threads = std::vector<Thread>(launch.cluster * launch.threads);
  for (unsigned rank = 0; rank < launch.cluster; ++rank) {
    Block& block = cluster.blocks[rank];
    block.cluster = &cluster;
    block.index = index * launch.cluster + rank;
    block.rank = rank;
    block.bytes = kSystemBytes + launch.shared_bytes;
    block.memory = memories.fresh(rank);
    block.warps = std::vector<Warp>(warps);
    block.product_log.resize((warps + 3) / 4);
    block.alive = launch.threads;
    for (unsigned i = 0; i < warps; ++i) {
      block.warps[i].block = &block;
      block.warps[i].index = static_cast<int>(i);
    }
    for (unsigned i = 0; i < launch.threads; ++i) {
      Thread& thread = cluster.threads[rank * launch.threads + i];
      thread.warp = &block.warps[i / kLanes];
      thread.lane = static_cast<int>(i % kLanes);
      thread.index = i;
      thread.warp->lanes[i % kLanes] = &thread;
      cluster.runnable.push_back(&thread);
    }
  }
  cluster.alive = launch.cluster * launch.threads;
}

void start(Thread& thread, const std::function<void()>& kernel) {
  thread.fiber = boost::context::fiber(std::allocator_arg, PooledStack{}, [&](boost::context::fiber&& scheduler) {
    thread.scheduler = std::move(scheduler);
    try {
      kernel();
    } catch (const std::exception& error) {  // not what unwinds a fiber that is given up
      cluster_of(thread).fault = error.what();
    }
    thread.done = true;
    return std::move(thread.scheduler);
  });
}

// Kinds of order: any thread; warps by a priority that changes now and then, so that some run far ahead; the thread
// that could run last, so that a warp goes as far as it can.
Thread& pick(Cluster& cluster) {
  std::vector<Thread*>& runnable = cluster.runnable;
  std::size_t at = cluster.random.below(runnable.size());
  if (cluster.order == 1) {
    for (std::size_t i = 1; i < kCandidates; ++i) {
      const std::size_t other = cluster.random.below(runnable.size());
      if (runnable[other]->warp->priority > runnable[at]->warp->priority) at = other;
    }
  } else if (cluster.order == 2 && !cluster.random.one_in(64)) {
    at = runnable.size() - 1;
  }
  Thread& thread = *runnable[at];
  runnable[at] = runnable.back();
  runnable.pop_back();
  return thread;
}

void do_some_work(Cluster& cluster) {
  std::vector<std::unique_ptr<Work>>& work = cluster.work;
  std::size_t at = cluster.random.below(work.size());
  if (work[at]->ordered) {
    for (std::size_t i = 0; i < at; ++i) {
      if (work[i]->owner == work[at]->owner && work[i]->ordered) at = i;
    }
  }
  const std::unique_ptr<Work> taken = std::move(work[at]);
  work.erase(work.begin() + static_cast<std::ptrdiff_t>(at));
  taken->run();
}

[[noreturn]] void report_deadlock(const Cluster& cluster) {
  std::map<std::pair<unsigned, int>, std::map<std::string, int>> waiting;  // by block and warp
  for (const Thread& thread : cluster.threads) {
    if (!thread.done) ++waiting[{block_of(thread).index, thread.warp->index}][thread.describe(thread)];
  }
  std::string text = "deadlock: no thread can go on, and nothing is under way";
  for (const auto& [place, reasons] : waiting) {
    for (const auto& [reason, lanes] : reasons)
      text += "\n  block " + std::to_string(place.first) + " warp " + std::to_string(place.second) + ", " +
              std::to_string(lanes) + " lanes: " + reason;
  }
  fail(text);
}

void give_turn(Cluster& cluster, const std::function<void()>& kernel) {
  Thread& thread = pick(cluster);
  current = &thread;
  if (!thread.fiber) start(thread, kernel);
  thread.fiber = std::move(thread.fiber).resume();
  current = nullptr;
  if (!cluster.fault.empty()) throw Fault(cluster.fault);
  if (thread.done) {
    --cluster.alive;
    --block_of(thread).alive;
    thread_ended(thread);
  }
}

void run_cluster(Cluster& cluster, const std::function<void()>& kernel) {
  int steps = 0;
  while (cluster.alive > 0) {
    if (steps++ % kShuffleSteps == 0) {
      for (Block& block : cluster.blocks)
        for (Warp& warp : block.warps) warp.priority = cluster.random.next();
    }
    const bool idle = cluster.runnable.empty();
    if (idle && cluster.work.empty()) report_deadlock(cluster);
    if (!cluster.work.empty() && (idle || cluster.random.one_in(cluster.work_chance))) {
      do_some_work(cluster);
    } else {
      give_turn(cluster, kernel);
    }
  }
  while (!cluster.work.empty()) do_some_work(cluster);
}

void check_end(const Cluster& cluster, const Memories& memories) {
  for (const Block& block : cluster.blocks) {
    const std::string name = "block " + std::to_string(block.index);
    if (!memories.tail_intact(block.rank)) fail(name + " wrote past its shared memory");
    for (const Warp& warp : block.warps) {
      if (!warp.accumulators.empty()) fail(name_of(warp) + " ended without waiting for its products");
      if (warp.products != block.product_log[static_cast<std::size_t>(warp.index / 4)].size())
        fail(name_of(warp) + " took no part in a product of its warpgroup");
    }
  }
  if (stack_overflowed()) fail("a thread needs more stack than the machine gives it");
}

}  // namespace

Device& device() {
  static Device made;
  return made;
}

void set_seed(std::uint64_t seed) {
  run_seed = seed;
  run_count = 0;
}

std::uint64_t runs_done() {
  return good_runs;
}

void run(const Launch& launch, const std::function<void()>& kernel) {
  if (current != nullptr) throw Fault("a launch by a running kernel");
  constexpr unsigned kChances[] = {0, 2, 16, 128, 1024};
  Random random{run_seed + (run_count++ << 20)};
  Memories memories(kSystemBytes + launch.shared_bytes, launch.cluster);
  for (unsigned index = 0; index < launch.grid / launch.cluster; ++index) {
    Cluster cluster;
    cluster.launch = launch;
    cluster.random.state = random.next();
    cluster.work_chance = kChances[random.below(std::size(kChances))];
    cluster.yield_chance = random.one_in(2) ? 0 : 8;
    cluster.order = static_cast<int>(random.below(3));
    set_up(cluster, memories, index);
    try {
      run_cluster(cluster, kernel);
      check_end(cluster, memories);
    } catch (...) {
      current = nullptr;
      throw;  // fibers that have not ended are unwound with the cluster
    }
  }
  ++good_runs;
}

Thread& self() {
  if (current == nullptr) throw Fault("an instruction outside of a kernel");
  return *current;
}

void wait_for(std::string (*describe)(const Thread&)) {
  Thread& thread = self();
  thread.describe = describe;
  thread.scheduler = std::move(thread.scheduler).resume();
}

void wake(Thread& thread) {
  cluster_of(thread).runnable.push_back(&thread);
}

void wake_all(std::vector<Thread*>& threads) {
  for (Thread* thread : threads) wake(*thread);
  threads.clear();
}

void maybe_yield() {
  Thread& thread = self();
  Cluster& cluster = cluster_of(thread);
  if (!cluster.random.one_in(cluster.yield_chance)) return;
  cluster.runnable.push_back(&thread);
  thread.scheduler = std::move(thread.scheduler).resume();
}

void add_work(std::unique_ptr<Work> work) {
  cluster_of(self()).work.push_back(std::move(work));
}

void finish_work(const void* owner, std::uint64_t group) {
  std::vector<std::unique_ptr<Work>>& work = cluster_of(self()).work;
  for (std::size_t i = 0; i < work.size();) {
    if (work[i]->owner != owner || work[i]->group >= group) {
      ++i;
      continue;
    }
    const std::unique_ptr<Work> taken = std::move(work[i]);
    work.erase(work.begin() + static_cast<std::ptrdiff_t>(i));
    taken->run();
  }
}

void fail(const std::string& what) {
  throw Fault(current == nullptr ? what : name_of(*current) + ": " + what);
}

std::string name_of(const Warp& warp) {
  return "block " + std::to_string(warp.block->index) + " warp " + std::to_string(warp.index);
}
std::string name_of(const Thread& thread) {
  return name_of(*thread.warp) + " lane " + std::to_string(thread.lane);
}

}  // namespace facet::emulated
