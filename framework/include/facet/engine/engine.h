// The step loop: scheduler -> checked plan -> KV rows -> model -> tokens.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "facet/engine/model.h"
#include "facet/engine/request.h"

namespace facet {

class ProgressWatch;
struct WantedRow;

struct EngineLimits {
  std::int64_t max_sequences = 1;
  std::int64_t max_step_tokens = 1;
  std::int64_t max_chunk = 1;  // tokens of one sequence in one step
  // Plan and queue the next step before the tokens of the last one are read, where the model chooses all of them: the
  // device then never waits for the host. A sequence that ends with a stop id has one row computed in vain.
  bool run_ahead = false;
};

struct EngineMetrics {
  std::int64_t steps = 0;
  std::int64_t prefill_tokens = 0;  // computed, recomputed ones included
  std::int64_t decode_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t step_us = 0;            // time inside steps
  std::int64_t decode_steps = 0;       // steps in which every sequence decoded
  std::int64_t decode_step_ns = 0;     // time of those
  std::int64_t decode_plugin_ns = 0;   // of it inside linear and attention plugins
  std::uint64_t peak_kv_reserved = 0;  // bytes
  std::uint64_t peak_kv_used = 0;
};

// A scheduler plugin with its options.
struct SchedulerInstance {
  PluginInstance<abi::Scheduler> plugin;
  std::string options;
  CallCounter counter;
};

// Not for use by several threads at once, except cancel(), which any thread may call.
class Engine {
 public:
  // Model and scheduler must outlive the engine. Limits are checked against model and cache: Error(config) with both
  // values.
  Engine(Model& model, SchedulerInstance& scheduler, const EngineLimits& limits);
  ~Engine();

  // Accepts a request and returns its id. Throws Error(request), naming field and numbers, when it can never run: empty
  // prompt, ids outside the vocabulary, longer than the context or the KV pool (prompt + max_tokens - 1 rows: the last
  // token stores none), bad sampling.
  std::uint64_t submit(Request request);
  // Ends a request at the next step; finished and unknown ids are ignored, so cancelling twice is harmless.
  void cancel(std::uint64_t id);
  // One step. False when nothing is live now (requests of the future may be waiting: see idle). With run_ahead the
  // tokens of a step may come out of the next call.
  // Throws Error for faults of the scheduler, among them 1000 preemptions of one sequence during which no request
  // gained a row or a token or ended; faults while running a batch fail the requests of that batch and the engine goes
  // on.
  bool step();
  // Steps until every request is finished, sleeping towards future arrivals, or until *stop, which a signal handler may
  // write, is not 0.
  void run(const std::atomic<int>* stop = nullptr);
  bool idle() const;

  // Results of finished requests, in order of finishing; each is returned once.
  std::vector<RequestResult> take_finished();
  // Called for each generated token, stop ids included, from within step(). What it throws fails the requests of the
  // batch.
  std::function<void(std::uint64_t id, std::int32_t token)> on_token;

  // Microseconds since construction or restart_clock(). Replaced in tests by a clock of their own.
  std::function<std::int64_t()> now_us;
  void restart_clock();
  const EngineMetrics& metrics() const { return metrics_; }
  void reset_metrics() { metrics_ = {}; }
  const SchedulerInstance& scheduler() const { return scheduler_; }

 private:
  struct Sequence;
  struct StepHost;
  struct Batch;
  struct Flight;

  void admit_arrivals();
  void drop_cancelled();
  void plan_step(std::vector<Sequence*>& scheduled);
  void run_batch(const std::vector<Sequence*>& scheduled);
  void fail_batch(const std::vector<Sequence*>& scheduled, const std::string& text);
  Batch make_batch(const std::vector<Sequence*>& scheduled) const;
  bool take_off(const std::vector<Sequence*>& scheduled, const Batch& batch);
  bool can_run_ahead() const;
  void assume_tokens();
  std::int32_t id_for_model(const Sequence& sequence, std::size_t index) const;
  void land();
  void land_all();
  void forget(const Sequence& sequence);
  void land_token(Sequence& sequence, std::int32_t id);
  static void add_wanted(const Sequence& sequence, std::size_t index, Batch& batch);
  bool take_chosen(const std::vector<Sequence*>& scheduled, std::span<const WantedRow> wanted,
                   std::span<const std::int32_t> rows);
  static std::vector<RowSampling> sampling_of(const std::vector<Sequence*>& scheduled,
                                              std::span<const WantedRow> wanted);
  void read_logits(const std::vector<Sequence*>& scheduled, const Batch& batch);
  void take_row(Sequence& sequence, std::int64_t offset, const float* logits);
  void add_score(Sequence& sequence, std::int64_t position, std::span<const float> logits, std::int32_t token);
  void accept_token(Sequence& sequence, std::int32_t token);
  void finish(Sequence& sequence, FinishReason reason, std::string error = {});
  void remove_finished();
  void sleep_until_arrival() const;

  Model& model_;
  SchedulerInstance& scheduler_;
  EngineLimits limits_;
  std::uint64_t next_id_ = 1;
  std::uint64_t step_ = 0;
  std::vector<std::unique_ptr<Sequence>> live_;    // in order of arrival, then id
  std::vector<std::unique_ptr<Sequence>> future_;  // the same order
  std::vector<RequestResult> finished_;
  struct CancelList;
  std::unique_ptr<CancelList> cancelled_;
  std::unique_ptr<ProgressWatch> progress_;
  std::unique_ptr<Flight> flight_;
  EngineMetrics metrics_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace facet
