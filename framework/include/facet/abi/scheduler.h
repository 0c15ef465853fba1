// Batching schedulers: which sequences work in the next step, and with how many tokens.
#pragma once

#include "facet/abi/types.h"

namespace facet::abi {

inline constexpr std::uint32_t kSchedulerInterfaceVersion = 0;

// waiting: holds no KV rows (new, or preempted and to be computed again). running: holds KV rows.
enum class SequenceState : std::uint32_t { waiting = 0, running = 1 };

struct SequenceView {
  std::uint32_t size;
  SequenceState state;
  std::uint64_t id;
  std::int32_t priority;      // higher goes first; 0 is normal
  std::uint32_t preemptions;  // how often it lost its rows
  std::int64_t arrival_us;
  std::int64_t prompt_tokens;
  std::int64_t generated_tokens;
  std::int64_t computed_tokens;   // rows in the cache
  std::int64_t pending_tokens;    // known tokens without a row: > 1 while prefilling (or recomputing), 1 while decoding
  std::int64_t remaining_tokens;  // it may still generate
  std::uint64_t last_step;        // step it last worked in; 0: never
};

struct SchedulerView {
  std::uint32_t size;
  std::uint32_t sequence_count;
  const SequenceView* sequences;  // every live sequence, in order of arrival (then of id)
  std::uint64_t step;             // of the step to be built, from 1
  std::int64_t now_us;
  std::int64_t max_step_tokens;  // over all sequences
  std::int64_t max_sequences;    // running at the same time
  std::int64_t max_chunk;        // tokens of one sequence in one step
};

// Answer to schedule(). Anything but scheduled leaves everything as it was.
enum class ScheduleResult : std::uint32_t {
  scheduled = 0,
  no_memory = 1,  // the cache has no room for the rows; preempt something or wait
  no_slot = 2,    // max_sequences are running
  no_budget = 3,  // max_step_tokens are used up
  invalid = 4,    // unknown id, scheduled twice, nothing pending, tokens < 1 or above max_chunk: a bug of the scheduler
};

// How a scheduler builds the step. Every call takes effect at once: rows are reserved when schedule() says so, so a
// plan that was accepted can always run.
struct StepBuilder {
  std::uint32_t size;
  std::uint32_t reserved;
  void* context;
  // Up to `tokens` of the sequence's pending tokens work in this step. *granted receives how many: fewer than asked
  // when fewer are pending (also because a prefix was found in the cache) or the step's budget holds no more. A waiting
  // sequence starts running.
  ScheduleResult (*schedule)(void* context, std::uint64_t sequence, std::int64_t tokens, std::int64_t* granted);
  // Takes away the rows of a running sequence that is not scheduled in this step; it waits and is computed again later.
  ScheduleResult (*preempt)(void* context, std::uint64_t sequence);
};

// The core checks every call, and calls a step in which something could work and nothing was scheduled an error of the
// plugin.
class Scheduler {
 public:
  virtual Status step(const SchedulerView& view, const StepBuilder& builder, TextSink error) noexcept = 0;
  // The sequence ended, failed or was cancelled; its id will not be seen again.
  virtual void finished(std::uint64_t sequence) noexcept = 0;

 protected:
  ~Scheduler() = default;
};

}  // namespace facet::abi
