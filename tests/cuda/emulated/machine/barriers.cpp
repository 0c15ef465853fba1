// Barriers in shared memory, named ones, that of the cluster.
#include <cstring>

#include "instructions.h"
#include "state.h"

namespace facet::emulated {

namespace {

constexpr std::uint64_t kBarrierPattern = 0xba5eba11ba5eba11u;
constexpr std::uint32_t kBarrierBytes = 8;
constexpr std::int64_t kMostBytes = (1 << 20) - 1;  // that a phase can count

// Ends the phase when nothing is left of it.
void advance(Mbarrier& barrier) {
  if (barrier.left != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.left = barrier.arrivals;
  wake_all(barrier.waiting);
}

bool is_over(const Mbarrier& barrier, std::uint32_t parity) {
  return (barrier.phase & 1) != parity;
}

std::string describe_barrier(const Thread& thread) {
  Cluster& cluster = cluster_of(thread);
  const Mbarrier& barrier = barrier_at(cluster, thread.barrier, "a wait");
  return "waits for parity " + std::to_string(thread.parity) + " of the barrier at " + name_of_address(thread.barrier) +
         ", which is in phase " + std::to_string(barrier.phase) + " and lacks " + std::to_string(barrier.left) +
         " of " + std::to_string(barrier.arrivals) + " arrivals and " + std::to_string(barrier.bytes) + " bytes";
}

std::string describe_named(const Thread& thread) {
  const NamedBarrier& barrier = block_of(thread).named[thread.barrier];
  return "waits at named barrier " + std::to_string(thread.barrier) + ", where " + std::to_string(barrier.arrived) +
         " of " + std::to_string(barrier.expected) + " have arrived";
}

std::string describe_cluster(const Thread& thread) {
  const Cluster& cluster = cluster_of(thread);
  return "waits at the cluster's barrier, where " + std::to_string(cluster.cluster_arrived) + " of " +
         std::to_string(cluster.alive) + " have arrived";
}

void advance_cluster(Cluster& cluster) {
  if (cluster.cluster_arrived < cluster.alive) return;
  ++cluster.cluster_phase;
  cluster.cluster_arrived = 0;
  wake_all(cluster.cluster_waiting);
}

// Of the running thread's block.
void require_own(std::uint32_t address, const char* what) {
  if (address >> kRankShift != block_of(self()).rank)
    fail(std::string(what) + " at " + name_of_address(address) + ", which is not the own block's");
}

}  // namespace

Mbarrier& barrier_at(Cluster& cluster, std::uint32_t address, const char* what) {
  const unsigned char* place = place_at(cluster, address, kBarrierBytes, kBarrierBytes, what);
  auto& barriers = block_at(cluster, address).barriers;
  const auto found = barriers.find(address & kOffsetMask);
  if (found == barriers.end())
    fail(std::string(what) + " at " + name_of_address(address) + ", where no barrier has been initialised");
  std::uint64_t pattern;
  std::memcpy(&pattern, place, sizeof pattern);
  if (pattern != kBarrierPattern) fail("the barrier at " + name_of_address(address) + " has been overwritten");
  return found->second;
}

void complete_bytes(Cluster& cluster, std::uint32_t address, std::uint32_t bytes) {
  Mbarrier& barrier = barrier_at(cluster, address, "the end of a copy");
  barrier.bytes -= bytes;
  if (barrier.bytes < -kMostBytes) fail("bytes beyond what the barrier at " + name_of_address(address) + " can count");
  advance(barrier);
}

void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  require_own(barrier, "barrier_init");
  Cluster& cluster = cluster_of(self());
  unsigned char* place = place_at(cluster, barrier, kBarrierBytes, kBarrierBytes, "barrier_init");
  if (arrivals == 0) fail("a barrier of 0 arrivals");
  std::memcpy(place, &kBarrierPattern, sizeof kBarrierPattern);
  Mbarrier made;
  made.arrivals = arrivals;
  made.left = arrivals;
  if (!block_at(cluster, barrier).barriers.emplace(barrier & kOffsetMask, made).second)
    fail("the barrier at " + name_of_address(barrier) + " is initialised twice");
}

void barrier_arrive(std::uint32_t barrier, bool remote) {
  maybe_yield();
  if (!remote) require_own(barrier, "barrier_arrive");
  Mbarrier& at = barrier_at(cluster_of(self()), barrier, "barrier_arrive");
  if (at.left == 0) fail("more arrivals than the phase of the barrier at " + name_of_address(barrier) + " has");
  --at.left;
  advance(at);
}

void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  maybe_yield();
  require_own(barrier, "barrier_expect");
  Mbarrier& at = barrier_at(cluster_of(self()), barrier, "barrier_expect");
  if (at.left == 0) fail("more arrivals than the phase of the barrier at " + name_of_address(barrier) + " has");
  at.bytes += bytes;
  if (at.bytes > kMostBytes) fail("bytes beyond what the barrier at " + name_of_address(barrier) + " can count");
  --at.left;
  advance(at);
}

bool barrier_test(std::uint32_t barrier, std::uint32_t parity) {
  maybe_yield();
  require_own(barrier, "barrier_test");
  if (parity > 1) fail("parity " + std::to_string(parity));
  return is_over(barrier_at(cluster_of(self()), barrier, "barrier_test"), parity);
}

void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  while (!barrier_test(barrier, parity)) {
    Thread& thread = self();
    thread.barrier = barrier;
    thread.parity = parity;
    barrier_at(cluster_of(thread), barrier, "barrier_wait").waiting.push_back(&thread);
    wait_for(describe_barrier);  // when it goes on, the phase may be another again: look anew
  }
}

void named_barrier(int id, int threads, bool wait) {
  maybe_yield();
  Thread& thread = self();
  Block& block = block_of(thread);
  if (id < 0 || id >= kNamedBarriers) fail("named barrier " + std::to_string(id));
  const auto expected = static_cast<unsigned>(threads);
  if (threads <= 0 || expected % kLanes != 0 || expected > block.cluster->launch.threads)
    fail("a named barrier of " + std::to_string(threads) + " threads");
  NamedBarrier& barrier = block.named[static_cast<std::size_t>(id)];
  if (barrier.arrived > 0 && barrier.expected != expected)
    fail("named barrier " + std::to_string(id) + " of " + std::to_string(threads) + " threads, of others of " +
         std::to_string(barrier.expected));
  barrier.expected = expected;
  if (++barrier.arrived == expected) {
    barrier.arrived = 0;
    wake_all(barrier.waiting);
  } else if (wait) {
    thread.barrier = static_cast<std::uint32_t>(id);
    barrier.waiting.push_back(&thread);
    wait_for(describe_named);
  }
}

void block_sync() {
  named_barrier(0, static_cast<int>(cluster_of(self()).launch.threads), true);
}

void cluster_arrive() {
  maybe_yield();
  Thread& thread = self();
  Cluster& cluster = cluster_of(thread);
  if (thread.cluster_arrived) fail("a second arrival at the cluster's barrier without a wait between");
  thread.cluster_arrived = true;
  thread.cluster_phase = cluster.cluster_phase;
  ++cluster.cluster_arrived;
  advance_cluster(cluster);
}

void cluster_wait() {
  maybe_yield();
  Thread& thread = self();
  Cluster& cluster = cluster_of(thread);
  if (!thread.cluster_arrived) fail("a wait at the cluster's barrier without an arrival");
  thread.cluster_arrived = false;
  if (cluster.cluster_phase != thread.cluster_phase) return;
  cluster.cluster_waiting.push_back(&thread);
  wait_for(describe_cluster);
}

void thread_ended(Thread& thread) {
  Cluster& cluster = cluster_of(thread);
  // The barrier of the cluster waits for those that have not ended.
  if (thread.cluster_arrived && thread.cluster_phase == cluster.cluster_phase) --cluster.cluster_arrived;
  if (cluster.alive > 0 && cluster.cluster_arrived > 0) advance_cluster(cluster);
  for (const Meeting& meeting : thread.warp->meetings) {
    if ((meeting.mask >> thread.lane & 1) != 0)
      fail(name_of(thread) + " ended while others of its warp wait for it at " + meeting.instruction);
  }
}

}  // namespace facet::emulated
