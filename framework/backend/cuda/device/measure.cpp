#include "device/measure.h"

#include <algorithm>

namespace facet::cuda {
namespace {

class Event {
 public:
  Event() = default;
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaError_t record(cudaStream_t stream) {
    const cudaError_t error = event_ == nullptr ? cudaEventCreate(&event_) : cudaSuccess;
    return error != cudaSuccess ? error : cudaEventRecord(event_, stream);
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Milliseconds of `launch`, one value for each of `repeats`, after `unmeasured` launches: a device that idled raises
// its clock meanwhile.
template <typename Launch>
cudaError_t time_launches(std::int64_t unmeasured, std::int64_t repeats, cudaStream_t stream, const Launch& launch,
                          double* milliseconds) {
  for (std::int64_t pass = -unmeasured; pass < repeats; ++pass) {
    Event begin, end;
    cudaError_t error = begin.record(stream);
    if (error == cudaSuccess) error = launch();
    if (error == cudaSuccess) error = end.record(stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(end.get());
    float time = 0;
    if (error == cudaSuccess) error = cudaEventElapsedTime(&time, begin.get(), end.get());
    if (error != cudaSuccess) return error;
    if (pass >= 0) milliseconds[pass] = static_cast<double>(time);
  }
  return cudaSuccess;
}

// Times become rates of `amount` a launch.
void to_rates(double amount, std::int64_t repeats, double* values) {
  for (std::int64_t i = 0; i < repeats; ++i) values[i] = amount / (values[i] * 1e-3);
}

// Of 4 GiB, some twenty milliseconds.
constexpr std::int64_t kUnmeasuredReads = 20;
constexpr std::int64_t kUnmeasuredProducts = 2;

}  // namespace

Stamps::~Stamps() {
  cudaFree(memory_);
}

cudaError_t Stamps::clear(cudaStream_t stream) {
  const std::uint64_t bytes = (1 + kStamps) * sizeof *memory_;
  if (memory_ == nullptr) {
    const cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&memory_), bytes);
    if (error != cudaSuccess) return error;
  }
  return cudaMemsetAsync(memory_, 0, bytes, stream);
}

cudaError_t Stamps::queue(cudaStream_t stream) {
  return memory_ == nullptr ? cudaErrorNotReady : launch_stamp(memory_, kStamps, stream);
}

cudaError_t Stamps::read(cudaStream_t stream, std::vector<std::uint64_t>& moments) {
  if (memory_ == nullptr) return cudaErrorNotReady;
  std::uint64_t count = 0;
  cudaError_t error = cudaStreamSynchronize(stream);
  if (error == cudaSuccess) error = cudaMemcpy(&count, memory_, sizeof count, cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) return error;
  moments.resize(std::min(count, kStamps));
  return cudaMemcpy(moments.data(), memory_ + 1, moments.size() * sizeof moments[0], cudaMemcpyDeviceToHost);
}

cudaError_t measure_read_rates(std::uint64_t bytes, std::int64_t repeats, double* rates, cudaStream_t stream) {
  char* memory = nullptr;
  cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&memory), bytes + sizeof(std::uint32_t));
  if (error == cudaSuccess) error = cudaMemsetAsync(memory, 0x5a, bytes + sizeof(std::uint32_t), stream);
  if (error == cudaSuccess) {
    const auto launch = [&] {
      return launch_read_all(memory, bytes, reinterpret_cast<std::uint32_t*>(memory + bytes), stream);
    };
    error = time_launches(kUnmeasuredReads, repeats, stream, launch, rates);
  }
  if (error == cudaSuccess) to_rates(static_cast<double>(bytes), repeats, rates);
  cudaFree(memory);
  if (error != cudaSuccess) cudaGetLastError();  // memory that is not there must not fail the next launch
  return error;
}

cudaError_t measure_multiply_rates(std::int64_t repeats, double* rates, cudaStream_t stream) {
  int device = 0, processors = 0;
  double operations = 0;
  float* sink = nullptr;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaMalloc(reinterpret_cast<void**>(&sink), sizeof *sink);
  if (error == cudaSuccess) {
    const auto launch = [&] { return launch_multiply(processors, &operations, sink, stream); };
    error = time_launches(kUnmeasuredProducts, repeats, stream, launch, rates);
  }
  if (error == cudaSuccess) to_rates(operations, repeats, rates);
  cudaFree(sink);
  return error;
}

}  // namespace facet::cuda
