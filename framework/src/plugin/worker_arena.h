// The only place that touches TBB: it owns the threads.
#pragma once

#include <cstdint>
#include <memory>

namespace facet {

// Processors that TBB sees for this process, at least 1; respects the affinity mask.
int available_processors();

// Room for `workers` threads, one of which is the caller. Thread-safe. Functions that have begun may outlive it.
class WorkerArena {
 public:
  explicit WorkerArena(std::uint32_t workers);
  ~WorkerArena();
  WorkerArena(const WorkerArena&) = delete;
  WorkerArena& operator=(const WorkerArena&) = delete;

  // Runs function(data) once on a thread of TBB, at once or later.
  void start(void (*function)(void*), void* data);

 private:
  struct Arena;
  std::uint32_t workers_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace facet
