// Base class of schedulers: write plan_step() with the two calls of Step; it may throw.
#pragma once

#include <span>

#include "facet/sdk/export.h"

namespace facet::sdk {

// The step under construction.
class Step {
 public:
  Step(const abi::SchedulerView& view, const abi::StepBuilder& builder) : view_(view), builder_(builder) {}

  const abi::SchedulerView& view() const { return view_; }
  std::span<const abi::SequenceView> sequences() const { return {view_.sequences, view_.sequence_count}; }
  // See abi::StepBuilder::schedule. `granted` may be null.
  abi::ScheduleResult schedule(std::uint64_t sequence, std::int64_t tokens, std::int64_t* granted = nullptr) const {
    std::int64_t ignored = 0;
    return builder_.schedule(builder_.context, sequence, tokens, granted != nullptr ? granted : &ignored);
  }
  abi::ScheduleResult preempt(std::uint64_t sequence) const { return builder_.preempt(builder_.context, sequence); }

 private:
  const abi::SchedulerView& view_;
  const abi::StepBuilder& builder_;
};

class SchedulerBase : public abi::Scheduler {
 public:
  using Interface = abi::Scheduler;
  static constexpr abi::PluginKind kKind = abi::PluginKind::scheduler;
  static constexpr std::uint32_t kInterfaceVersion = abi::kSchedulerInterfaceVersion;

  virtual ~SchedulerBase() = default;

  virtual void plan_step(const Step& step) = 0;
  // The sequence will not be seen again.
  virtual void forget(std::uint64_t /*sequence*/) {}

  abi::Status step(const abi::SchedulerView& view, const abi::StepBuilder& builder,
                   abi::TextSink error) noexcept final {
    return guarded(error, [&] { plan_step(Step(view, builder)); });
  }
  void finished(std::uint64_t sequence) noexcept final {
    guarded(no_text(), [&] { forget(sequence); });
  }
};

}  // namespace facet::sdk
