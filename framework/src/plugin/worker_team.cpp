#include "plugin/worker_team.h"

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace facet {

namespace {

// How long an idle worker spins before it sleeps: longer than the serial gaps inside a decode step (sampling, norms),
// short against a human's pause. Waking a sleeper costs about 50 us, a spinner under 1 us.
constexpr auto kSpin = std::chrono::microseconds(200);
// Reading the clock costs about 25 ns, as much as this many pauses.
constexpr int kPausesPerLook = 32;
// Waiting for a begun piece: after so many looks its thread is probably not running, so offer it this processor.
constexpr int kLooksBeforeYield = 2000;

constexpr std::uint32_t kStop = 0xfffffffe;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

struct Job {
  std::int64_t count = 0;
  std::int64_t size = 0;
  void* data = nullptr;
  abi::ParallelBody body = nullptr;

  void run(std::uint32_t piece) const {
    const std::int64_t begin = piece * size;
    body(data, begin, std::min(count, begin + size), piece);
  }
};

// How many threads TBB may own: enough for all teams that live at the same time. It only grows, because TBB keeps idle
// threads and would start new ones next to them under a looser limit. Process wide and never destroyed, since teams may
// end on TBB's own threads.
class ThreadLimit {
 public:
  static ThreadLimit& process() {
    static auto& limit = *new ThreadLimit;
    return limit;
  }
  void add(std::uint32_t workers) {
    const std::lock_guard lock(mutex_);
    living_ += workers - 1;
    const std::size_t needed = std::max<std::size_t>(living_ + 1, static_cast<std::size_t>(default_concurrency()));
    if (needed <= limit_) return;
    limit_ = needed;
    // The smallest living control counts, so the new one works once the old one is gone.
    control_ = std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism, needed);
  }
  void remove(std::uint32_t workers) {
    const std::lock_guard lock(mutex_);
    living_ -= workers - 1;
  }
  static int default_concurrency() { return std::max(1, tbb::info::default_concurrency()); }

 private:
  std::mutex mutex_;
  std::size_t living_ = 0;
  std::size_t limit_ = 0;
  std::unique_ptr<tbb::global_control> control_;
};

// One worker's mailbox, on its own cache line. state is even: turn `state` is open to whoever adds 1 first; odd: taken.
struct alignas(64) Mailbox {
  std::atomic<std::uint32_t> state{1};
  std::atomic<std::uint32_t> done{0};  // the last turn that was worked off by the worker
};

}  // namespace

LoopPieces split_loop(std::int64_t count, std::int64_t grain, std::uint32_t workers) noexcept {
  if (count <= 0) return {0, 0};
  // A grain above count means one piece; clamping keeps the products below from overflowing.
  grain = std::clamp<std::int64_t>(grain, 1, count);
  const std::int64_t share = (count - 1) / workers + 1;
  const std::int64_t grains = (share - 1) / grain + 1;
  if (grains > count / grain) return {count, 1};
  const std::int64_t size = grains * grain;
  return {size, static_cast<std::uint32_t>((count - 1) / size + 1)};
}

// Shared with the resident tasks, which may outlive the WorkerTeam when TBB starts them late.
struct WorkerTeam::Team {
  explicit Team(std::uint32_t workers)
      : mailboxes(workers),
        arena(static_cast<int>(workers), 1),
        // With more workers than processors a spinner takes the processor from the one it waits for.
        spin(static_cast<int>(workers) <= ThreadLimit::default_concurrency() ? kSpin : std::chrono::microseconds(0)) {}

  void note(std::exception_ptr error) {
    const std::lock_guard lock(error_mutex);
    if (!first_error) first_error = error;
    failed.store(true, std::memory_order_release);
  }

  void run_piece(std::uint32_t piece) noexcept {
    try {
      job.run(piece);
    } catch (...) {
      note(std::current_exception());
    }
  }

  // The state once it is neither `seen` nor taken; spins, then sleeps.
  std::uint32_t next_turn(Mailbox& mailbox, std::uint32_t seen) const {
    const auto is_new = [&](std::uint32_t state) { return state != seen && (state & 1) == 0; };
    const auto begin = std::chrono::steady_clock::now();
    do {
      for (int i = 0; i < kPausesPerLook; ++i) {
        const std::uint32_t state = mailbox.state.load(std::memory_order_acquire);
        if (is_new(state)) return state;
        pause();
      }
    } while (std::chrono::steady_clock::now() - begin < spin);
    while (true) {
      const std::uint32_t state = mailbox.state.load(std::memory_order_acquire);
      if (is_new(state)) return state;
      mailbox.state.wait(state, std::memory_order_acquire);
    }
  }

  void reside(std::uint32_t piece) noexcept {
    Mailbox& mailbox = mailboxes[piece];
    std::uint32_t seen = 1;
    while (true) {
      seen = next_turn(mailbox, seen);
      if (seen == kStop) return;
      // Lost when the caller was faster.
      std::uint32_t open = seen;
      if (!mailbox.state.compare_exchange_strong(open, open + 1, std::memory_order_acq_rel)) continue;
      run_piece(piece);
      mailbox.done.store(seen, std::memory_order_release);
    }
  }

  void start(const std::shared_ptr<Team>& self) {
    started = true;
    for (std::uint32_t piece = 1; piece < mailboxes.size(); ++piece) {
      arena.enqueue([self, piece] {
        self->entered.fetch_add(1);
        if (!self->stopped.load()) self->reside(piece);
        self->left.fetch_add(1);
        self->left.notify_all();
      });
    }
  }

  std::vector<Mailbox> mailboxes;  // [0] is unused: the caller is worker 0
  Job job;                         // read only by whoever holds an open turn
  std::atomic<bool> busy{false};
  bool started = false;    // guarded by busy
  std::uint32_t turn = 0;  // guarded by busy
  std::mutex error_mutex;
  std::exception_ptr first_error;
  std::atomic<bool> failed{false};
  std::atomic<bool> stopped{false};
  std::atomic<std::uint32_t> entered{0};
  std::atomic<std::uint32_t> left{0};
  tbb::task_arena arena;
  std::chrono::microseconds spin;
};

WorkerTeam::WorkerTeam(std::uint32_t workers) : workers_(std::clamp<std::uint32_t>(workers, 1, kMaxWorkers)) {
  if (workers_ == 1) return;
  ThreadLimit::process().add(workers_);
  team_ = std::make_shared<Team>(workers_);
}

WorkerTeam::~WorkerTeam() {
  if (team_ == nullptr) return;
  team_->stopped.store(true);
  for (Mailbox& mailbox : team_->mailboxes) {
    mailbox.state.store(kStop);
    mailbox.state.notify_all();
  }
  // Tasks that TBB has not started yet find `stopped` and keep the team alive themselves.
  ThreadLimit::process().remove(workers_);
  std::uint32_t left = team_->left.load();
  while (left < team_->entered.load()) {
    team_->left.wait(left);
    left = team_->left.load();
  }
}

void WorkerTeam::parallel_for(std::int64_t count, std::int64_t grain, void* data, abi::ParallelBody body) {
  const LoopPieces pieces = split_loop(count, grain, workers_);
  const Job job{count, pieces.size, data, body};
  if (pieces.count <= 1) {
    if (pieces.count == 1) job.run(0);
    return;
  }
  Team& team = *team_;
  if (team.busy.exchange(true, std::memory_order_acquire)) {
    for (std::uint32_t piece = 0; piece < pieces.count; ++piece) job.run(piece);
    return;
  }
  if (!team.started) team.start(team_);
  team.job = job;
  // Turns are even, skip the stop value's neighbourhood, and return to a value only after 2^31 loops.
  team.turn = team.turn + 2 >= kStop ? 2 : team.turn + 2;
  const std::uint32_t turn = team.turn;
  for (std::uint32_t piece = 1; piece < pieces.count; ++piece) {
    team.mailboxes[piece].state.store(turn);
    team.mailboxes[piece].state.notify_one();
  }
  team.run_piece(0);
  for (std::uint32_t piece = 1; piece < pieces.count; ++piece) {
    Mailbox& mailbox = team.mailboxes[piece];
    std::uint32_t open = turn;
    if (mailbox.state.compare_exchange_strong(open, turn + 1, std::memory_order_acq_rel)) {
      team.run_piece(piece);
      continue;
    }
    for (int look = 0; mailbox.done.load(std::memory_order_acquire) != turn; ++look) {
      if (look < kLooksBeforeYield) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
  }
  std::exception_ptr error;
  if (team.failed.load(std::memory_order_acquire)) {
    error = std::move(team.first_error);
    team.first_error = nullptr;
    team.failed.store(false, std::memory_order_relaxed);
  }
  team.busy.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

}  // namespace facet
