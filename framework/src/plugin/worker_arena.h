// The only place that touches TBB: it owns the threads.
#pragma once

#include <cstdint>
#include <memory>

namespace facet {

// Processors that TBB sees for this process, at least 1; respects the affinity mask.
int available_processors();

// Room for `workers` threads, one of which is the caller. Functions that have begun may outlive it. Several may be made
// and used at the same time, each by one thread at a time.
class WorkerArena {
 public:
  // Throws Error(run) when the system does not give so many threads.
  explicit WorkerArena(std::uint32_t workers);
  ~WorkerArena();
  WorkerArena(const WorkerArena&) = delete;
  WorkerArena& operator=(const WorkerArena&) = delete;

  // Runs function(argument) once on a thread of TBB, at once or later, or never when the process ends first: so the
  // argument is a number, as memory that only a waiting task knows of would be lost.
  void start(void (*function)(std::uint64_t), std::uint64_t argument);

 private:
  struct Arena;
  std::uint32_t workers_;
  bool started_ = false;
  std::unique_ptr<Arena> arena_;
};

}  // namespace facet
