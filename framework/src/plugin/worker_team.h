// The parallel loop: oneTBB owns the threads, a spinning hand-off gives them their pieces.
#pragma once

#include <cstdint>
#include <memory>

#include "facet/abi/host.h"
#include "plugin/worker_arena.h"

namespace facet {

// Pieces of a loop, a function of count, grain and workers alone: piece p is [p * size, min(count, (p + 1) * size)),
// and size is a multiple of grain.
struct LoopPieces {
  std::int64_t size;
  std::uint32_t count;
};
LoopPieces split_loop(std::int64_t count, std::int64_t grain, std::uint32_t workers) noexcept;

// A decode step has hundreds of loops of some ten microseconds. Waking TBB for each costs more than many of them take,
// so each worker is one resident TBB task that spins for the next loop and sleeps on a futex after a while. The caller
// works on piece 0 and then on every piece that nobody has begun: a loop never waits for a thread that the system has
// not given us. Which thread works on a piece may differ; pieces and worker numbers do not.
class WorkerTeam {
 public:
  // Threads start with the first loop of more than one piece. Throws Error(run) when the system does not give so many.
  explicit WorkerTeam(std::uint32_t workers);
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  std::uint32_t workers() const noexcept { return workers_; }
  // See abi::HostTable::parallel_for. Nested and simultaneous calls run all their pieces on the calling thread. What a
  // body throws, against the contract, is rethrown here once every piece is done.
  void parallel_for(std::int64_t count, std::int64_t grain, void* data, abi::ParallelBody body);

 private:
  struct Team;
  class Residents;
  std::uint32_t workers_;
  std::unique_ptr<WorkerArena> arena_;
  std::shared_ptr<Team> team_;
};

}  // namespace facet
