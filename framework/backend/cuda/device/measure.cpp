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

// Some twenty milliseconds for 4 GiB: a device that idled raises its clock meanwhile.
constexpr std::int64_t kWarmUpReads = 20;

cudaError_t time_reads(const void* memory, std::uint64_t bytes, std::uint32_t* sink, std::int64_t repeats,
                       double* rates, cudaStream_t stream) {
  for (std::int64_t pass = -kWarmUpReads; pass < repeats; ++pass) {
    Event begin, end;
    cudaError_t error = begin.record(stream);
    if (error == cudaSuccess) error = launch_read_all(memory, bytes, sink, stream);
    if (error == cudaSuccess) error = end.record(stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(end.get());
    float milliseconds = 0;
    if (error == cudaSuccess) error = cudaEventElapsedTime(&milliseconds, begin.get(), end.get());
    if (error != cudaSuccess) return error;
    if (pass >= 0) rates[pass] = static_cast<double>(bytes) / (static_cast<double>(milliseconds) * 1e-3);
  }
  return cudaSuccess;
}

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
  if (error == cudaSuccess)
    error = time_reads(memory, bytes, reinterpret_cast<std::uint32_t*>(memory + bytes), repeats, rates, stream);
  cudaFree(memory);
  if (error != cudaSuccess) cudaGetLastError();  // memory that is not there must not fail the next launch
  return error;
}

}  // namespace facet::cuda
