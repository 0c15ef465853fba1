// Steps that are recorded once and replayed; when they ran, and what each of their kernels belongs to.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "device_api.h"

namespace facet::cuda {

// The methods of Backend with these purposes. Not for use by several threads at once.
class RecordedSteps {
 public:
  // The device must outlive this.
  explicit RecordedSteps(DeviceApi& device) : device_(device) {}
  ~RecordedSteps();
  RecordedSteps(const RecordedSteps&) = delete;
  RecordedSteps& operator=(const RecordedSteps&) = delete;

  bool run(const void* owner, std::int64_t key, const std::function<void()>& launch);
  void run_once(const std::function<void()>& launch);
  void forget(const void* owner) noexcept;
  void enter_part(std::int32_t part);
  std::vector<KernelTime> trace(const std::function<void()>& work);
  std::vector<StepTime> time(const std::function<void()>& work);

 private:
  struct Step {
    void* graph = nullptr;
    std::vector<std::int32_t> parts;  // of each kernel
  };

  Step record(const std::function<void()>& launch);
  void replay(const Step& step);
  void end_tracing() noexcept;

  DeviceApi& device_;
  // Steps that are timed are recorded once more, with a stamp at each end: {owner, with stamps, key}.
  std::map<std::tuple<const void*, bool, std::int64_t>, Step> steps_;
  std::vector<Step> once_;  // recorded for the trace at hand
  bool recording_ = false, tracing_ = false, timing_ = false;
  std::int32_t part_ = -1;                  // that enter_part() named last
  std::vector<std::int32_t> parts_;         // of the step that is recorded
  std::vector<std::int32_t> traced_parts_;  // of all kernels replayed in the trace
  std::vector<bool> replayed_;              // of the timed steps
};

}  // namespace facet::cuda
