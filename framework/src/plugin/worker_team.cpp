#include "plugin/worker_team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "facet/base/limits.h"

#if defined(__SANITIZE_THREAD__)
// libtbb is not instrumented: what it hands to memset and its like is ordered by locks that ThreadSanitizer cannot see.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libtbb.so.12\n";
}
#endif

namespace facet {

namespace {

// How long an idle worker spins before it sleeps: longer than the serial gaps inside a decode step (sampling, norms).
// Measured on 2 cores of an EPYC: a loop handed to a spinner costs 0.5 to 0.7 us, to a sleeper 12 to 20 us.
constexpr auto kSpin = std::chrono::microseconds(200);
// The clock is read once in so many looks at the mailbox, since reading it takes as long as a look.
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

struct WorkerTeam::Team {
  explicit Team(std::uint32_t workers)
      : mailboxes(workers),
        // With more workers than processors a spinner takes the processor from the one it waits for.
        spin(static_cast<int>(workers) <= available_processors() ? kSpin : std::chrono::microseconds(0)) {}

  void note(std::exception_ptr error) {
    const std::lock_guard lock(error_mutex);
    if (!first_error) first_error = std::move(error);
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

  static void start(const std::shared_ptr<Team>& self, WorkerArena& arena);

  std::vector<Mailbox> mailboxes;  // [0] is unused: the caller is worker 0
  Job job;                         // read only by whoever holds an open turn
  std::atomic<bool> busy{false};
  bool started = false;    // guarded by busy
  std::uint32_t turn = 0;  // guarded by busy
  std::mutex error_mutex;
  std::exception_ptr first_error;
  std::atomic<bool> failed{false};
  std::uint32_t entered = 0;  // guarded by the mutex of Residents
  std::atomic<std::uint32_t> left{0};
  std::chrono::microseconds spin;
};

// The resident tasks that TBB has not begun, of all teams. A task knows its number alone and looks for its team here,
// so one that TBB begins late, or never, keeps nothing alive. Never destroyed: a task may begin while the process ends.
class WorkerTeam::Residents {
 public:
  static Residents& process() {
    static auto& residents = *new Residents;
    return residents;
  }

  std::uint64_t add(std::shared_ptr<Team> team, std::uint32_t piece) {
    const std::lock_guard lock(mutex_);
    waiting_.emplace(++last_number_, Resident{std::move(team), piece});
    return last_number_;
  }

  // Tasks of the team that are still to begin will find nothing. Returns how many have begun.
  std::uint32_t withdraw(const Team& team) {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](const auto& entry) { return entry.second.team.get() == &team; });
    return team.entered;
  }

  static void run(std::uint64_t number) {
    const Resident resident = process().begin(number);
    if (resident.team == nullptr) return;
    resident.team->reside(resident.piece);
    resident.team->left.fetch_add(1);
    resident.team->left.notify_all();
  }

 private:
  struct Resident {
    std::shared_ptr<Team> team;  // outlives the WorkerTeam while its last tasks leave
    std::uint32_t piece = 0;
  };

  Resident begin(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto node = waiting_.extract(number);
    if (node.empty()) return {};
    ++node.mapped().team->entered;
    return std::move(node.mapped());
  }

  std::mutex mutex_;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Resident> waiting_;
};

void WorkerTeam::Team::start(const std::shared_ptr<Team>& self, WorkerArena& arena) {
  self->started = true;
  for (std::uint32_t piece = 1; piece < self->mailboxes.size(); ++piece) {
    arena.start(Residents::run, Residents::process().add(self, piece));
  }
}

WorkerTeam::WorkerTeam(std::uint32_t workers) : workers_(std::clamp<std::uint32_t>(workers, 1, kMostThreads)) {
  if (workers_ == 1) return;
  arena_ = std::make_unique<WorkerArena>(workers_);
  team_ = std::make_shared<Team>(workers_);
}

WorkerTeam::~WorkerTeam() {
  if (team_ == nullptr) return;
  const std::uint32_t entered = Residents::process().withdraw(*team_);
  for (Mailbox& mailbox : team_->mailboxes) {
    mailbox.state.store(kStop);
    mailbox.state.notify_all();
  }
  for (std::uint32_t left = team_->left.load(); left != entered; left = team_->left.load()) team_->left.wait(left);
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
  if (!team.started) Team::start(team_, *arena_);
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
