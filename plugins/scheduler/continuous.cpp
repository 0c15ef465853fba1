#include "continuous.h"

#include <algorithm>

namespace facet::scheduler {

ContinuousScheduler::ContinuousScheduler(sdk::Host /*host*/, const sdk::OptionReader& options)
    : by_length_(options.text("order") == "length"),
      prefill_tokens_(options.integer("prefill_tokens")),
      max_partial_(options.integer("max_prefill_sequences")),
      newcomer_share_(options.real("newcomer_share")),
      ageing_steps_(options.integer("ageing_steps")) {}

void ContinuousScheduler::plan_step(const sdk::Step& step) {
  take_view(step);
  decode(step);
  prefill(step);
  if (progress_.tokens == 0) force_progress(step);
}

void ContinuousScheduler::take_view(const sdk::Step& step) {
  items_.clear();
  progress_ = {};
  for (const abi::SequenceView& sequence : step.sequences()) {
    const std::uint64_t seen = first_seen_.emplace(sequence.id, step.view().step).first->second;
    const auto waited = static_cast<std::int64_t>(step.view().step - seen);
    items_.push_back({&sequence, sequence.priority * ageing_steps_ + waited});
    if (!is_running(sequence)) continue;
    ++progress_.running;
    progress_.rows += sequence.computed_tokens;
    progress_.growth += std::min(sequence.remaining_tokens, kHeadroom);
    if (!is_decoding(sequence)) ++progress_.partial;
  }
  // The view is in order of arrival, which decides between equals.
  std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.rank > b.rank; });
  if (capacity_ != kUnknown) capacity_ = std::max(capacity_, progress_.rows);
}

// Every scheduling goes through here, so that rows, slots and the size of the cache are known at any time.
abi::ScheduleResult ContinuousScheduler::schedule(const sdk::Step& step, Item& item, std::int64_t tokens,
                                                  std::int64_t* granted) {
  const abi::SequenceView& sequence = *item.sequence;
  std::int64_t given = 0;
  const auto answer = step.schedule(sequence.id, tokens, &given);
  if (granted != nullptr) *granted = given;
  if (answer == abi::ScheduleResult::no_memory) capacity_ = progress_.rows + tokens - 1;
  if (answer != abi::ScheduleResult::scheduled) return answer;
  item.scheduled = true;
  progress_.tokens += given;
  progress_.rows += given;
  if (!is_running(sequence)) {
    ++progress_.running;
    progress_.growth += std::min(sequence.remaining_tokens, kHeadroom);
    if (given < sequence.pending_tokens) ++progress_.partial;
  }
  return answer;
}

// Takes the rows of the lowest-ranked sequence below `item`; false when there is none left.
bool ContinuousScheduler::preempt_below(const sdk::Step& step, const Item& item) {
  const auto victim = std::find_if(items_.rbegin(), items_.rend(), [&](const Item& other) {
    return &other == &item || (other.holds_rows() && !other.scheduled);
  });
  if (victim == items_.rend() || &*victim == &item) return false;
  if (step.preempt(victim->sequence->id) != abi::ScheduleResult::scheduled) return false;
  victim->preempted = true;
  --progress_.running;
  progress_.rows -= victim->sequence->computed_tokens;
  progress_.growth -= std::min(victim->sequence->remaining_tokens, kHeadroom);
  if (!is_decoding(*victim->sequence)) --progress_.partial;
  return true;
}

void ContinuousScheduler::decode(const sdk::Step& step) {
  for (Item& item : items_) {
    if (item.preempted || !is_decoding(*item.sequence)) continue;
    auto answer = schedule(step, item, 1);
    while (answer == abi::ScheduleResult::no_memory && preempt_below(step, item)) answer = schedule(step, item, 1);
    if (answer == abi::ScheduleResult::no_budget) return;
    // It pauses; nobody may take the rows that it waits for.
    if (answer == abi::ScheduleResult::no_memory) progress_.admitting = false;
  }
}

// For a step in which nothing could be scheduled by the rules. First whatever can move without harm, in small pieces if
// need be; then the highest rank that holds rows takes those of the lowest until it can move.
void ContinuousScheduler::force_progress(const sdk::Step& step) {
  const auto squeeze = [&](Item& item) {
    for (std::int64_t tokens = chunk(*item.sequence, step.view()); tokens > 0; tokens /= 2)
      if (schedule(step, item, tokens) == abi::ScheduleResult::scheduled) return true;
    return false;
  };
  for (Item& item : items_)
    if (item.holds_rows() && squeeze(item)) return;
  for (Item& item : items_) {
    if (!item.holds_rows()) continue;
    while (preempt_below(step, item))
      if (squeeze(item)) return;
    break;
  }
  for (Item& item : items_)
    if (!item.preempted && !is_running(*item.sequence) && squeeze(item)) return;
}

FACET_EXPORT_PLUGIN(ContinuousScheduler)

}  // namespace facet::scheduler
