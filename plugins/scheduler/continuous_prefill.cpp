// Which prompts advance in a step, and by how much.
#include <algorithm>

#include "continuous.h"

namespace facet::scheduler {

void ContinuousScheduler::prefill(const sdk::Step& step) {
  std::int64_t budget = step.view().max_step_tokens - progress_.tokens;
  if (prefill_tokens_ > 0) budget = std::min(budget, prefill_tokens_);
  std::vector<Item*> order;
  std::int64_t wanted = 0;
  for (Item& item : items_) {
    if (item.preempted || is_decoding(*item.sequence)) continue;
    order.push_back(&item);
    wanted += chunk(*item.sequence, step.view());
  }
  if (order.empty() || budget <= 0) return;
  if (by_length_) {
    const auto level = [&](const Item* item) {
      const auto rounded_down = [](std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); };
      return rounded_down(item->rank, ageing_steps_);
    };
    std::stable_sort(order.begin(), order.end(), [&](const Item* a, const Item* b) {
      if (level(a) != level(b)) return level(a) > level(b);
      return a->sequence->prompt_tokens < b->sequence->prompt_tokens;
    });
  }
  const std::int64_t before = progress_.tokens;
  // Memory that frees up belongs to the prompts that already hold rows.
  if (starved_) progress_.admitting = false;
  if (wanted > budget && order.size() > 1 && !starved_) {
    share_with_short(step, order, budget, wanted);
  } else {
    credit_ = 0;
  }
  fill_in_order(step, order, budget - (progress_.tokens - before));
}

// The share of the shortest prompts behind the first one. Fractions of a token are carried to the next step.
void ContinuousScheduler::share_with_short(const sdk::Step& step, const std::vector<Item*>& order, std::int64_t budget,
                                           std::int64_t wanted) {
  const double share = static_cast<double>(budget) * newcomer_share_ / (1 + newcomer_share_);
  credit_ = std::min(credit_ + share, static_cast<double>(budget));
  auto left = static_cast<std::int64_t>(credit_);
  if (left == 0) return;
  // Whoever passes the first that waits leaves it a slot, a partial prompt and its rows.
  const auto first_waiting =
      std::find_if(order.begin(), order.end(), [](const Item* item) { return !is_running(*item->sequence); });
  std::vector<Item*> shortest(order.begin() + 1, order.end());
  std::stable_sort(shortest.begin(), shortest.end(), [](const Item* a, const Item* b) {
    return a->sequence->pending_tokens < b->sequence->pending_tokens;
  });
  const Item* const passed = first_waiting != order.end() ? *first_waiting : nullptr;
  if (passed != nullptr && !fits(*passed->sequence, 0)) progress_.admitting = false;
  bool any = false;
  for (Item* item : shortest) {
    const std::int64_t need = chunk(*item->sequence, step.view());
    // Only the first may get less than it needs: crumbs for many prompts would finish none of them.
    if (left <= 0 || (any && need > left)) break;
    // It works once in a step, so it also takes here what the others cannot use.
    const std::int64_t spare = budget - (wanted - need);
    const std::int64_t tokens = std::min(need, std::max(left, spare));
    if (!is_running(*item->sequence) && !may_start(step, *item, tokens, passed != item ? passed : nullptr)) continue;
    std::int64_t granted = 0;
    const auto answer = schedule(step, *item, tokens, &granted);
    if (answer == abi::ScheduleResult::no_memory) {
      progress_.admitting = false;
      break;
    }
    if (answer != abi::ScheduleResult::scheduled) break;
    any = true;
    left -= granted;
    credit_ = std::max(0.0, credit_ - static_cast<double>(granted));
  }
  // Nobody took it: nothing is owed.
  if (!any) credit_ = 0;
}

void ContinuousScheduler::fill_in_order(const sdk::Step& step, const std::vector<Item*>& order, std::int64_t budget) {
  starved_ = false;
  for (Item* item : order) {
    if (budget <= 0) return;
    if (item->scheduled) continue;
    const bool waiting = !is_running(*item->sequence);
    const std::int64_t tokens = std::min(chunk(*item->sequence, step.view()), budget);
    if (waiting && !may_start(step, *item, tokens, nullptr)) {
      // Those behind it may not take the memory or the slot that it waits for.
      progress_.admitting = false;
      continue;
    }
    std::int64_t granted = 0;
    const auto answer = schedule(step, *item, tokens, &granted);
    if (answer == abi::ScheduleResult::scheduled) {
      budget -= granted;
    } else if (answer == abi::ScheduleResult::no_budget) {
      return;
    } else {
      progress_.admitting = false;
      if (waiting) continue;
      starved_ = answer == abi::ScheduleResult::no_memory;
      return;
    }
  }
}

bool ContinuousScheduler::may_start(const sdk::Step& step, const Item& item, std::int64_t tokens,
                                    const Item* passed) const {
  if (!progress_.admitting) return false;
  const std::int64_t reserved = passed != nullptr ? 1 : 0;
  if (progress_.running + reserved >= step.view().max_sequences) return false;
  const bool completes = tokens >= item.sequence->pending_tokens;
  if (!completes && max_partial_ > 0 && progress_.partial + reserved >= max_partial_) return false;
  return fits(*item.sequence, passed != nullptr ? rows_to_start(*passed->sequence) : 0);
}

std::int64_t ContinuousScheduler::rows_to_start(const abi::SequenceView& sequence) {
  return sequence.pending_tokens + std::min(sequence.remaining_tokens, kHeadroom);
}

bool ContinuousScheduler::fits(const abi::SequenceView& sequence, std::int64_t reserved_rows) const {
  if (capacity_ == kUnknown || (progress_.running == 0 && reserved_rows == 0)) return true;
  return progress_.rows + progress_.growth + rows_to_start(sequence) + reserved_rows <= capacity_;
}

}  // namespace facet::scheduler
