// Finds schedulers that run for ever: steps that preempt and compute again what was preempted.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace facet {

// Preemptions of one sequence while no request gained a row it never had, gained a token, or ended. Every such
// preemption threw work away for nothing. A scheduler that lets anything run on causes a few at most; a thousand are
// far from that, and still found within seconds.
inline constexpr std::int64_t kMaxVainPreemptions = 1000;

class ProgressWatch {
 public:
  // What sequence `id` has before a step: rows in the cache and tokens generated.
  void observe(std::uint64_t id, std::int64_t computed, std::int64_t generated) {
    Furthest& furthest = furthest_[id];
    if (computed <= furthest.computed && generated <= furthest.generated) return;
    if (computed > furthest.computed) furthest.computed = computed;
    furthest.generated = generated;
    vain_.clear();
  }
  // One more preemption; returns how many of this sequence were in vain so far.
  std::int64_t preempted(std::uint64_t id) { return ++vain_[id]; }
  // The sequence ended, which is progress.
  void ended(std::uint64_t id) {
    furthest_.erase(id);
    vain_.clear();
  }

 private:
  struct Furthest {
    std::int64_t computed = 0;
    std::int64_t generated = 0;
  };
  std::unordered_map<std::uint64_t, Furthest> furthest_;
  std::unordered_map<std::uint64_t, std::int64_t> vain_;
};

}  // namespace facet
