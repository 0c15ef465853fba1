// Built without ThreadSanitizer (see CMakeLists.txt): libtbb is not instrumented, so its hand-over of a task between
// threads would look like a race. WorkerTeam marks that hand-over itself.
#include "plugin/worker_arena.h"

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <mutex>

#include "plugin/thread_probe.h"

namespace facet {

namespace {

// How many threads TBB may own: enough for all teams that live at the same time. It only grows, because TBB keeps idle
// threads and would start new ones next to them under a looser limit. Process wide and never destroyed, since teams may
// end on TBB's own threads.
class ThreadLimit {
 public:
  static ThreadLimit& process() {
    static auto& limit = *new ThreadLimit;
    return limit;
  }
  // Throws Error(run) when the system does not give so many threads.
  void add(std::uint32_t workers) {
    const std::lock_guard lock(mutex_);
    const std::size_t living = living_ + workers - 1;
    if (living > most_started_) require_threads(static_cast<std::uint32_t>(living - most_started_));
    living_ = living;
    const std::size_t needed = std::max<std::size_t>(living_ + 1, static_cast<std::size_t>(available_processors()));
    if (needed <= limit_) return;
    limit_ = needed;
    // The smallest living control counts, so the new one works once the old one is gone.
    control_ = std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism, needed);
  }
  void start(std::uint32_t workers) {
    const std::lock_guard lock(mutex_);
    started_ += workers - 1;
    most_started_ = std::max(most_started_, started_);
  }
  void remove(std::uint32_t workers, bool started) {
    const std::lock_guard lock(mutex_);
    living_ -= workers - 1;
    if (started) started_ -= workers - 1;
  }

 private:
  std::mutex mutex_;
  std::size_t living_ = 0;
  std::size_t started_ = 0;
  std::size_t most_started_ = 0;  // at the same time: TBB has and keeps these
  std::size_t limit_ = 0;
  std::unique_ptr<tbb::global_control> control_;
};

}  // namespace

int available_processors() {
  return std::max(1, tbb::info::default_concurrency());
}

struct WorkerArena::Arena {
  explicit Arena(std::uint32_t workers) : arena(static_cast<int>(workers), 1) {}
  tbb::task_arena arena;
};

WorkerArena::WorkerArena(std::uint32_t workers) : workers_(workers) {
  ThreadLimit::process().add(workers);
  arena_ = std::make_unique<Arena>(workers);
}

WorkerArena::~WorkerArena() {
  ThreadLimit::process().remove(workers_, started_);
}

void WorkerArena::start(void (*function)(std::uint64_t), std::uint64_t argument) {
  if (!started_) ThreadLimit::process().start(workers_);
  started_ = true;
  arena_->arena.enqueue([function, argument] { function(argument); });
}

}  // namespace facet
