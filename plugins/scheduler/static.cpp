// Fixed batches: a batch is prefilled, decoded until its last member has finished, and only then is the next one
// formed. The simplest scheduler there is, and the baseline that continuous batching is compared with.
//
// - A sequence that the cache has no room for leaves the batch and waits for the next one. When a member that is
// already
//   running meets a full cache, members behind it in the batch lose their rows and wait for the next batch. Preempted
//   sequences are first in the next batch, and the first member of a batch is never preempted: every batch finishes at
//   least one sequence.
// - While a member still has prompt tokens to compute, the others do not decode.
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "work.h"

namespace facet::scheduler {
namespace {

class StaticScheduler final : public sdk::SchedulerBase {
 public:
  static constexpr sdk::PluginInfo kInfo = {
      .name = "static",
      .version = "0.1.0",
      .summary = "fixed batches: prefill all, decode until the last has finished, then the next batch",
      .devices = kAllDevices,
      .flags = abi::kDeterministic};
  static constexpr abi::OptionSpec kOptions[] = {
      sdk::integer_option("batch_size", 0, 0, 1 << 20, "sequences", "most sequences in a batch; 0: max_sequences"),
      sdk::choice_option("order", "arrival", kOrders,
                         "which waiting sequences go first: arrival, or length (shortest prompt first)"),
      sdk::integer_option("max_skipped_batches", 8, 0, 1 << 20, "batches",
                          "a sequence left out of this many batches goes before the order"),
  };

  StaticScheduler(sdk::Host /*host*/, const sdk::OptionReader& options)
      : batch_size_(options.integer("batch_size")),
        by_length_(options.text("order") == "length"),
        max_skipped_(options.integer("max_skipped_batches")) {}

  void plan_step(const sdk::Step& step) override {
    const auto sequences = step.sequences();
    std::vector<Member> members;
    for (const abi::SequenceView& sequence : sequences) {
      // Whatever holds rows belongs to the batch, also when this scheduler did not start it.
      const auto place = place_.find(sequence.id);
      if (place != place_.end() || is_running(sequence))
        members.push_back({&sequence, place != place_.end() ? place->second : next_place_++});
      if (is_running(sequence)) place_.emplace(sequence.id, members.back().place);
    }
    if (members.empty()) members = form_batch(step);
    std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.place < b.place; });

    if (prefill(step, members)) return;
    if (decode(step, members)) return;
    // Nothing moves: a member is stuck halfway through its prompt. Those behind it make room.
    make_progress(step, members);
  }

  void forget(std::uint64_t sequence) override {
    place_.erase(sequence);
    skipped_.erase(sequence);
  }

 private:
  struct Member {
    const abi::SequenceView* sequence;
    std::uint64_t place;  // lower: earlier in the batch
    bool scheduled = false;
    bool out = false;  // left the batch in this step
  };

  std::vector<Member> form_batch(const sdk::Step& step) {
    std::vector<const abi::SequenceView*> waiting;
    for (const abi::SequenceView& sequence : step.sequences()) waiting.push_back(&sequence);
    const auto overdue = [&](const abi::SequenceView& sequence) {
      const auto found = skipped_.find(sequence.id);
      return sequence.preemptions > 0 || (found != skipped_.end() && found->second >= max_skipped_);
    };
    // The view is in order of arrival, which decides between equals.
    std::stable_sort(waiting.begin(), waiting.end(), [&](const auto* a, const auto* b) {
      if (overdue(*a) != overdue(*b)) return overdue(*a);
      if (overdue(*a) || !by_length_) return false;
      return a->prompt_tokens < b->prompt_tokens;
    });
    std::int64_t size = step.view().max_sequences;
    if (batch_size_ > 0) size = std::min(size, batch_size_);
    std::vector<Member> members;
    for (const auto* sequence : waiting) {
      if (static_cast<std::int64_t>(members.size()) < size) {
        members.push_back({sequence, next_place_});
        place_[sequence->id] = next_place_++;
      } else {
        ++skipped_[sequence->id];
      }
    }
    return members;
  }

  void leave_batch(Member& member) {
    member.out = true;
    place_.erase(member.sequence->id);
    ++skipped_[member.sequence->id];
  }

  bool prefill(const sdk::Step& step, std::vector<Member>& members) {
    bool any = false;
    for (Member& member : members) {
      if (is_decoding(*member.sequence)) continue;
      const auto answer = step.schedule(member.sequence->id, chunk(*member.sequence, step.view()));
      member.scheduled = answer == abi::ScheduleResult::scheduled;
      any = any || member.scheduled;
      if (answer == abi::ScheduleResult::no_budget) break;
      // A member without rows can wait for the next batch; one with rows goes on when the others have finished.
      if (!member.scheduled && !is_running(*member.sequence)) leave_batch(member);
    }
    return any;
  }

  bool decode(const sdk::Step& step, std::vector<Member>& members) {
    std::vector<Member*> decoding;
    for (Member& member : members)
      if (is_decoding(*member.sequence)) decoding.push_back(&member);
    // With more members than the step has tokens they take turns, from where the last step stopped.
    if (static_cast<std::int64_t>(decoding.size()) > step.view().max_step_tokens) {
      const auto next = std::find_if(decoding.begin(), decoding.end(),
                                     [&](const Member* member) { return member->place > last_decoded_; });
      std::rotate(decoding.begin(), next, decoding.end());
    }
    bool any = false;
    for (Member* member : decoding) {
      if (member->out) continue;
      const auto answer = schedule_with_room(step, members, *member, 1);
      if (answer == abi::ScheduleResult::no_budget) break;
      if (answer != abi::ScheduleResult::scheduled) continue;
      any = true;
      last_decoded_ = member->place;
    }
    return any;
  }

  void make_progress(const sdk::Step& step, std::vector<Member>& members) {
    for (Member& member : members) {
      if (member.out || !is_running(*member.sequence)) continue;
      const std::int64_t whole = chunk(*member.sequence, step.view());
      if (schedule_with_room(step, members, member, whole) == abi::ScheduleResult::scheduled) return;
      // Room for a whole chunk is more than it needs to move.
      for (std::int64_t tokens = whole / 2; tokens > 0; tokens /= 2)
        if (step.schedule(member.sequence->id, tokens) == abi::ScheduleResult::scheduled) return;
    }
    // No member can work at all (each left the batch or holds rows that others than this plugin must free).
    for (const abi::SequenceView& sequence : step.sequences()) {
      if (is_running(sequence)) continue;
      for (std::int64_t tokens = chunk(sequence, step.view()); tokens > 0; tokens /= 2) {
        if (step.schedule(sequence.id, tokens) != abi::ScheduleResult::scheduled) continue;
        place_[sequence.id] = next_place_++;
        return;
      }
    }
  }

  // Preempts members behind `member`, last first, until the cache has room or nobody is left to preempt.
  abi::ScheduleResult schedule_with_room(const sdk::Step& step, std::vector<Member>& members, Member& member,
                                         std::int64_t tokens) {
    while (true) {
      const auto answer = step.schedule(member.sequence->id, tokens);
      member.scheduled = answer == abi::ScheduleResult::scheduled;
      if (answer != abi::ScheduleResult::no_memory) return answer;
      const auto victim = std::find_if(members.rbegin(), members.rend(), [&](const Member& other) {
        return other.place > member.place && !other.out && !other.scheduled && is_running(*other.sequence);
      });
      if (victim == members.rend()) return answer;
      step.preempt(victim->sequence->id);
      leave_batch(*victim);
    }
  }

  std::int64_t batch_size_;
  bool by_length_;
  std::int64_t max_skipped_;
  std::uint64_t next_place_ = 0;
  std::uint64_t last_decoded_ = 0;                           // place
  std::unordered_map<std::uint64_t, std::uint64_t> place_;   // members of the batch
  std::unordered_map<std::uint64_t, std::int64_t> skipped_;  // batches that went without it
};

}  // namespace

FACET_EXPORT_PLUGIN(StaticScheduler)

}  // namespace facet::scheduler
