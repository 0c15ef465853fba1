#include "recorded_steps.h"

#include "device_check.h"

namespace facet::cuda {
namespace {

struct Noted {
  std::vector<KernelTime> kernels;
  std::vector<std::size_t> recorded;  // those of recorded steps
};

void note(void* context, const char* name, std::uint64_t start_ns, std::uint64_t end_ns, bool recorded) {
  auto& noted = *static_cast<Noted*>(context);
  if (recorded) noted.recorded.push_back(noted.kernels.size());
  noted.kernels.push_back({name, start_ns, end_ns, -1});
}

}  // namespace

RecordedSteps::~RecordedSteps() {
  for (const auto& [name, step] : steps_) device_.destroy_graph(step.graph);
}

bool RecordedSteps::run(const void* owner, std::int64_t key, const std::function<void()>& launch) {
  const std::tuple<const void*, bool, std::int64_t> name{owner, timing_, key};
  auto found = steps_.find(name);
  const bool fresh = found == steps_.end();
  if (fresh) found = steps_.emplace(name, record(launch)).first;
  if (timing_) replayed_.push_back(!fresh);
  replay(found->second);
  return fresh;
}

void RecordedSteps::run_once(const std::function<void()>& launch) {
  if (!tracing_) {
    launch();
    return;
  }
  once_.push_back(record(launch));
  replay(once_.back());
}

void RecordedSteps::forget(const void* owner) noexcept {
  for (auto at = steps_.begin(); at != steps_.end();) {
    if (std::get<0>(at->first) != owner) {
      ++at;
      continue;
    }
    device_.destroy_graph(at->second.graph);
    at = steps_.erase(at);
  }
}

void RecordedSteps::enter_part(std::int32_t part) {
  if (!recording_) return;
  SinkText text;
  std::int64_t kernels = 0;
  check(device_.captured_kernels(&kernels, text.sink()), "counting what is recorded", text);
  // Kernels so far belong to the part before.
  parts_.resize(static_cast<std::size_t>(kernels), part_);
  part_ = part;
}

std::vector<KernelTime> RecordedSteps::trace(const std::function<void()>& work) {
  SinkText text;
  check(device_.begin_trace(text.sink()), "beginning a trace", text);
  traced_parts_.clear();
  tracing_ = true;
  Noted noted;
  try {
    work();
  } catch (...) {
    device_.end_trace(note, &noted, text.sink());
    end_tracing();
    throw;
  }
  const abi::Status status = device_.end_trace(note, &noted, text.sink());
  end_tracing();
  check(status, "ending a trace", text);
  // Each kernel of a step waits for the one before it, so they end in the order of the recording.
  if (noted.recorded.size() == traced_parts_.size()) {
    for (std::size_t i = 0; i < noted.recorded.size(); ++i) noted.kernels[noted.recorded[i]].part = traced_parts_[i];
  }
  return std::move(noted.kernels);
}

std::vector<StepTime> RecordedSteps::time(const std::function<void()>& work) {
  SinkText text;
  check(device_.begin_stamps(text.sink()), "beginning to time steps", text);
  replayed_.clear();
  timing_ = true;
  try {
    work();
  } catch (...) {
    timing_ = false;
    throw;
  }
  timing_ = false;
  const std::uint64_t* moments = nullptr;
  std::uint64_t count = 0;
  check(device_.end_stamps(&moments, &count, text.sink()), "reading the times of steps", text);
  std::vector<StepTime> steps;
  for (std::size_t i = 0; i < replayed_.size() && 2 * i + 1 < count; ++i)
    steps.push_back({moments[2 * i], moments[2 * i + 1], replayed_[i]});
  return steps;
}

// What throws inside `launch` must not leave the stream recording.
RecordedSteps::Step RecordedSteps::record(const std::function<void()>& launch) {
  SinkText text;
  check(device_.begin_capture(text.sink()), "beginning a recording", text);
  recording_ = true;
  parts_.clear();
  part_ = -1;
  Step step;
  try {
    if (timing_) check(device_.stamp(text.sink()), "recording a stamp", text);
    launch();
    enter_part(-1);
    if (timing_) check(device_.stamp(text.sink()), "recording a stamp", text);
    enter_part(-1);
  } catch (...) {
    recording_ = false;
    if (device_.end_capture(&step.graph, text.sink()) == abi::Status::ok) device_.destroy_graph(step.graph);
    throw;
  }
  recording_ = false;
  check(device_.end_capture(&step.graph, text.sink()), "ending a recording", text);
  step.parts = std::move(parts_);
  return step;
}

void RecordedSteps::replay(const Step& step) {
  SinkText text;
  check(device_.replay(step.graph, text.sink()), "replaying a recorded step", text);
  if (tracing_) traced_parts_.insert(traced_parts_.end(), step.parts.begin(), step.parts.end());
}

void RecordedSteps::end_tracing() noexcept {
  tracing_ = false;
  for (const Step& step : once_) device_.destroy_graph(step.graph);
  once_.clear();
}

}  // namespace facet::cuda
