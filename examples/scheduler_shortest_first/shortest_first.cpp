// A complete scheduler plugin: least remaining work first, with an option that lets long waiting count.
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "facet/sdk/scheduler.h"

using namespace facet;

class ShortestFirst final : public sdk::SchedulerBase {
 public:
  static constexpr sdk::PluginInfo kInfo = {.name = "shortest_first",
                                            .version = "0.1.0",
                                            .summary = "the sequence with the least remaining work goes first",
                                            .flags = abi::kDeterministic};
  static constexpr abi::OptionSpec kOptions[] = {
      sdk::integer_option("patience", 1, 0, 1000, "tokens", "each step of waiting counts as so many tokens less work"),
  };

  ShortestFirst(sdk::Host, const sdk::OptionReader& options) : patience_(options.integer("patience")) {}

  void plan_step(const sdk::Step& step) override {
    std::vector<const abi::SequenceView*> order;
    for (const auto& sequence : step.sequences()) {
      seen_.emplace(sequence.id, step.view().step);
      order.push_back(&sequence);
    }
    const auto work = [&](const abi::SequenceView& s) {
      const auto waited = static_cast<std::int64_t>(step.view().step - seen_.at(s.id));
      return s.pending_tokens + s.remaining_tokens - patience_ * waited;
    };
    std::stable_sort(order.begin(), order.end(), [&](auto* a, auto* b) { return work(*a) < work(*b); });
    for (auto next = order.begin(); next != order.end(); ++next) {
      const abi::SequenceView& sequence = **next;
      const std::int64_t tokens = std::min(sequence.pending_tokens, step.view().max_chunk);
      // When the cache is full, those with the most work left give up their rows, last first.
      while (step.schedule(sequence.id, tokens) == abi::ScheduleResult::no_memory && order.end() - next > 1) {
        if (order.back()->state == abi::SequenceState::running) step.preempt(order.back()->id);
        order.pop_back();
      }
    }
  }

  void forget(std::uint64_t sequence) override { seen_.erase(sequence); }

 private:
  std::int64_t patience_;
  std::unordered_map<std::uint64_t, std::uint64_t> seen_;  // first step of every live sequence
};

FACET_EXPORT_PLUGIN(ShortestFirst)
