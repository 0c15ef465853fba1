// The core as a scheduler sees it, without a model: rows, block rounding, slots, budgets and virtual time are honest,
// tokens are only counted. One step is one tick.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "facet/abi/scheduler.h"

namespace facet::test {

struct SimConfig {
  std::int64_t max_step_tokens = 64;
  std::int64_t max_sequences = 8;
  std::int64_t max_chunk = 64;
  std::int64_t block = 16;
  std::int64_t pool_blocks = 1 << 20;
  std::int64_t prefix_hit = 0;  // tokens of every starting sequence that are found in the cache
};

struct SimRequest {
  std::int64_t prompt = 1;
  std::int64_t max_new = 1;
  std::int32_t priority = 0;
  std::uint64_t arrival = 0;  // first step that may see it
};

struct SimSequence {
  std::uint64_t id = 0;
  SimRequest request;
  bool running = false;
  std::int64_t computed = 0;
  std::int64_t generated = 0;
  std::int64_t blocks = 0;
  std::uint32_t preemptions = 0;
  std::uint64_t last_step = 0;
  std::int64_t scheduled = 0;  // tokens in this step
  // What the tests look at.
  std::uint64_t first_token_step = 0;
  std::uint64_t finish_step = 0;
  std::int64_t fed = 0;                           // tokens computed, recomputation included
  std::map<std::uint64_t, std::int64_t> worked;   // tokens by step
  std::map<std::uint64_t, std::int64_t> sampled;  // output tokens by step

  std::int64_t known() const { return request.prompt + generated; }
  std::int64_t pending() const { return known() - computed; }
  // The last token is never computed, so it needs no row.
  std::int64_t rows_at_end() const { return request.prompt + request.max_new - 1; }
};

class SimCore {
 public:
  SimCore(const SimConfig& config, abi::Scheduler& scheduler) : config_(config), scheduler_(scheduler) {}

  // False when the request could never run, as the core refuses it before a scheduler sees it.
  bool add(std::uint64_t id, const SimRequest& request) {
    SimSequence sequence;
    sequence.id = id;
    sequence.request = request;
    if (blocks_for(sequence.rows_at_end()) > config_.pool_blocks) return false;
    live_.push_back(sequence);
    return true;
  }

  void cancel(std::uint64_t id) {
    for (std::size_t i = 0; i < live_.size(); ++i) {
      if (live_[i].id == id) return end(i);
    }
  }

  // One tick. Returns how many tokens worked.
  std::int64_t step() {
    ++step_;
    make_views();
    used_tokens_ = 0;
    const abi::SchedulerView view{sizeof view,
                                  static_cast<std::uint32_t>(views_.size()),
                                  views_.data(),
                                  step_,
                                  static_cast<std::int64_t>(step_) * 1000,
                                  config_.max_step_tokens,
                                  config_.max_sequences,
                                  config_.max_chunk};
    const abi::StepBuilder builder{sizeof builder, 0, this, &SimCore::schedule_entry, &SimCore::preempt_entry};
    std::string error;
    const abi::TextSink sink{&error, [](void* context, const char* text, std::uint64_t size) {
                               static_cast<std::string*>(context)->append(text, size);
                             }};
    if (scheduler_.step(view, builder, sink) != abi::Status::ok) faults_.push_back("step failed: " + error);
    // Every request fits alone, so preemption can always make something work.
    if (!views_.empty() && used_tokens_ == 0)
      faults_.push_back("step " + std::to_string(step_) + " is empty with " + std::to_string(views_.size()) + " live");
    compute();
    return used_tokens_;
  }

  // Steps until nothing is live; false when that takes more than `limit` steps or a fault shows.
  bool run(std::uint64_t limit) {
    while (!live_.empty() && faults_.empty() && step_ < limit) step();
    return live_.empty() && faults_.empty();
  }

  std::uint64_t now() const { return step_; }
  const std::vector<std::string>& faults() const { return faults_; }
  std::int64_t used_blocks() const { return used_blocks_; }
  std::int64_t preemptions() const { return preemptions_; }
  const std::vector<SimSequence>& live() const { return live_; }
  bool is_live(std::uint64_t id) const { return find(id) != nullptr; }
  const SimSequence& of(std::uint64_t id) const {
    const SimSequence* found = find(id);
    return found != nullptr ? *found : done_.at(id);
  }

 private:
  std::int64_t blocks_for(std::int64_t rows) const { return (rows + config_.block - 1) / config_.block; }

  const SimSequence* find(std::uint64_t id) const {
    for (const SimSequence& sequence : live_)
      if (sequence.id == id) return &sequence;
    return nullptr;
  }

  void make_views() {
    views_.clear();
    for (const SimSequence& sequence : live_) {
      if (sequence.request.arrival > step_) continue;
      abi::SequenceView view{};
      view.size = sizeof view;
      view.state = sequence.running ? abi::SequenceState::running : abi::SequenceState::waiting;
      view.id = sequence.id;
      view.priority = sequence.request.priority;
      view.preemptions = sequence.preemptions;
      view.arrival_us = static_cast<std::int64_t>(sequence.request.arrival) * 1000;
      view.prompt_tokens = sequence.request.prompt;
      view.generated_tokens = sequence.generated;
      view.computed_tokens = sequence.computed;
      view.pending_tokens = sequence.pending();
      view.remaining_tokens = sequence.request.max_new - sequence.generated;
      view.last_step = sequence.last_step;
      views_.push_back(view);
    }
    std::stable_sort(views_.begin(), views_.end(), [](const auto& a, const auto& b) {
      return a.arrival_us != b.arrival_us ? a.arrival_us < b.arrival_us : a.id < b.id;
    });
  }

  // The sequence if this step's view showed it.
  SimSequence* visible(std::uint64_t id) {
    for (SimSequence& sequence : live_)
      if (sequence.id == id && sequence.request.arrival <= step_) return &sequence;
    return nullptr;
  }

  abi::ScheduleResult invalid(const std::string& what, std::uint64_t id) {
    faults_.push_back("step " + std::to_string(step_) + ": " + what + ", sequence " + std::to_string(id));
    return abi::ScheduleResult::invalid;
  }

  abi::ScheduleResult schedule(std::uint64_t id, std::int64_t tokens, std::int64_t* granted) {
    SimSequence* sequence = visible(id);
    if (sequence == nullptr) return invalid("schedule of an unknown id", id);
    if (sequence->scheduled > 0) return invalid("scheduled twice", id);
    if (tokens < 1 || tokens > config_.max_chunk) return invalid("tokens " + std::to_string(tokens), id);
    if (used_tokens_ >= config_.max_step_tokens) return abi::ScheduleResult::no_budget;
    std::int64_t running = 0;
    for (const SimSequence& other : live_) running += other.running ? 1 : 0;
    if (!sequence->running && running >= config_.max_sequences) return abi::ScheduleResult::no_slot;
    std::int64_t found = 0;
    if (!sequence->running)
      found = std::min(config_.prefix_hit, sequence->pending() - 1) / config_.block * config_.block;
    const std::int64_t given = std::min({tokens, sequence->pending() - found, config_.max_step_tokens - used_tokens_});
    const std::int64_t more = blocks_for(sequence->computed + found + given) - sequence->blocks;
    if (used_blocks_ + more > config_.pool_blocks) return abi::ScheduleResult::no_memory;
    used_blocks_ += more;
    sequence->blocks += more;
    sequence->computed += found;
    sequence->running = true;
    sequence->scheduled = given;
    used_tokens_ += given;
    *granted = given;
    return abi::ScheduleResult::scheduled;
  }

  abi::ScheduleResult preempt(std::uint64_t id) {
    SimSequence* sequence = visible(id);
    if (sequence == nullptr || !sequence->running || sequence->scheduled > 0)
      return invalid("preempted without being running and idle", id);
    used_blocks_ -= sequence->blocks;
    sequence->blocks = 0;
    sequence->computed = 0;
    sequence->running = false;
    ++sequence->preemptions;
    ++preemptions_;
    return abi::ScheduleResult::scheduled;
  }

  void compute() {
    for (std::size_t i = 0; i < live_.size();) {
      SimSequence& sequence = live_[i];
      if (sequence.scheduled > 0) {
        sequence.computed += sequence.scheduled;
        sequence.fed += sequence.scheduled;
        sequence.worked[step_] = sequence.scheduled;
        sequence.last_step = step_;
        sequence.scheduled = 0;
        if (sequence.pending() == 0) {
          if (sequence.generated++ == 0) sequence.first_token_step = step_;
          sequence.sampled[step_] = 1;
        }
        if (sequence.generated == sequence.request.max_new) {
          sequence.finish_step = step_;
          end(i);
          continue;
        }
      }
      ++i;
    }
  }

  void end(std::size_t index) {
    SimSequence ended = live_[index];
    used_blocks_ -= ended.blocks;
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
    done_[ended.id] = ended;
    scheduler_.finished(ended.id);
  }

  static abi::ScheduleResult schedule_entry(void* self, std::uint64_t id, std::int64_t tokens, std::int64_t* granted) {
    return static_cast<SimCore*>(self)->schedule(id, tokens, granted);
  }
  static abi::ScheduleResult preempt_entry(void* self, std::uint64_t id) {
    return static_cast<SimCore*>(self)->preempt(id);
  }

  SimConfig config_;
  abi::Scheduler& scheduler_;
  std::vector<SimSequence> live_;
  std::map<std::uint64_t, SimSequence> done_;
  std::vector<abi::SequenceView> views_;
  std::vector<std::string> faults_;
  std::uint64_t step_ = 0;
  std::int64_t used_tokens_ = 0;
  std::int64_t used_blocks_ = 0;
  std::int64_t preemptions_ = 0;
};

}  // namespace facet::test
