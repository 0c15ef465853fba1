// The device behind DeviceApi: memory, copies, recorded steps, and the launches of launch.h.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <vector>

#include "device/exchange.h"
#include "device/kernel_trace.h"
#include "device/launch.h"
#include "device/measure.h"
#include "device/pinned.h"
#include "device_api.h"
#include "facet/sdk/cuda/no_gpu.h"
#include "facet/sdk/text.h"

namespace facet::cuda {
namespace {

constexpr std::uint64_t kRuntimeAlignment = 256;  // what cudaMalloc gives
constexpr std::int64_t kMaxArgmaxRows = 1024;

// Writes CUDA's text for an error; ok for success.
abi::Status status_of(cudaError_t error, abi::TextSink sink) {
  if (error == cudaSuccess) return abi::Status::ok;
  sdk::write_line(sink, sdk::concat(cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
  return error == cudaErrorMemoryAllocation ? abi::Status::out_of_memory : abi::Status::failed;
}

class Device final : public DeviceApi {
 public:
  explicit Device(std::int32_t ordinal) : ordinal_(ordinal) {}
  ~Device() {
    cudaStreamSynchronize(stream_);
    cudaEventDestroy(copied_);
    cudaFree(argmax_scratch_);
    cudaStreamDestroy(stream_);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  cudaError_t start() {
    cudaError_t error = cudaSetDevice(ordinal_);
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming);
    if (error == cudaSuccess)
      error = cudaMalloc(&argmax_scratch_, sizeof(std::uint64_t) * kArgmaxBlocks * kMaxArgmaxRows);
    if (error == cudaSuccess) error = upload_.reserve(kUploadBytes);
    if (error == cudaSuccess) error = exchange_.start();
    return error;
  }

  abi::Status facts(DeviceFacts* facts, abi::TextSink sink) noexcept override {
    cudaDeviceProp properties = {};
    std::size_t free = 0, total = 0;
    cudaError_t error = cudaGetDeviceProperties(&properties, ordinal_);
    if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
    std::memcpy(facts->name, properties.name, sizeof facts->name - 1);
    facts->name[sizeof facts->name - 1] = '\0';
    facts->compute_major = properties.major;
    facts->compute_minor = properties.minor;
    facts->total_bytes = total;
    facts->free_bytes = free;
    return status_of(error, sink);
  }

  abi::Stream stream() noexcept override { return {abi::Device::cuda, ordinal_, queue()}; }

  abi::Status allocate(std::uint64_t bytes, std::uint64_t alignment, void** data,
                       abi::TextSink sink) noexcept override {
    const std::uint64_t slack = alignment > kRuntimeAlignment ? alignment : 0;
    void* raw = nullptr;
    cudaError_t error = cudaMalloc(&raw, bytes + slack);
    if (error == cudaSuccess) error = cudaMemsetAsync(raw, 0, bytes + slack, stream_);
    // Plugins may write their memory from other streams.
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    const abi::Status status = status_of(error, sink);
    if (status != abi::Status::ok) {
      cudaGetLastError();  // a failed allocation must not fail the next launch
      cudaFree(raw);
      return status;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(raw);
    *data = slack == 0 ? raw : reinterpret_cast<void*>((address + alignment - 1) / alignment * alignment);
    try {
      if (*data != raw) shifted_[*data] = raw;
    } catch (const std::bad_alloc&) {
      cudaFree(raw);
      sdk::write_line(sink, "no host memory");
      return abi::Status::out_of_memory;
    }
    return abi::Status::ok;
  }
  void deallocate(void* data) noexcept override {
    const auto found = shifted_.find(data);
    cudaFree(found == shifted_.end() ? data : found->second);
    if (found != shifted_.end()) shifted_.erase(found);
  }

  // Through pinned memory, so that the call returns before the copy is done. The event guards the reuse of that memory.
  abi::Status upload(void* device, const void* host, std::uint64_t bytes, abi::TextSink sink) noexcept override {
    if (bytes <= Exchange::kSlotBytes) return status_of(exchange_.send(device, host, bytes, stream_), sink);
    cudaError_t error = exchange_.flush(stream_);
    for (std::uint64_t done = 0; done < bytes && error == cudaSuccess;) {
      const std::uint64_t count = std::min(bytes - done, upload_.bytes());
      if (upload_used_ + count > upload_.bytes()) {
        error = cudaEventSynchronize(copied_);
        upload_used_ = 0;
      }
      if (error != cudaSuccess) break;
      char* staging = static_cast<char*>(upload_.data()) + upload_used_;
      std::memcpy(staging, static_cast<const char*>(host) + done, count);
      error = cudaMemcpyAsync(static_cast<char*>(device) + done, staging, count, cudaMemcpyHostToDevice, stream_);
      if (error == cudaSuccess) error = cudaEventRecord(copied_, stream_);
      upload_used_ += (count + 63) / 64 * 64;
      done += count;
    }
    return status_of(error, sink);
  }

  abi::Status read_back(const void* device, std::uint64_t bytes, const void** host,
                        abi::TextSink sink) noexcept override {
    cudaError_t error = read_.reserve(bytes);
    if (error == cudaSuccess) error = cudaMemcpyAsync(read_.data(), device, bytes, cudaMemcpyDeviceToHost, queue());
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    *host = read_.data();
    return status_of(error, sink);
  }

  abi::Status begin_read_back(const void* device, std::uint64_t bytes, abi::TextSink sink) noexcept override {
    return status_of(exchange_.ask(device, bytes), sink);
  }
  abi::Status end_read_back(const void** host, abi::TextSink sink) noexcept override {
    return status_of(exchange_.wait(host, stream_), sink);
  }

  abi::Status begin_capture(abi::TextSink sink) noexcept override {
    counted_nodes_ = 0;
    counted_kernels_ = 0;
    return status_of(cudaStreamBeginCapture(queue(), cudaStreamCaptureModeThreadLocal), sink);
  }
  // Looks at what came since the last call only: a step of hundreds of kernels asks after every few of them.
  abi::Status captured_kernels(std::int64_t* count, abi::TextSink sink) noexcept override try {
    cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    std::size_t nodes = 0;
    cudaError_t error = cudaStreamGetCaptureInfo(stream_, &state, nullptr, &graph, nullptr, nullptr, nullptr);
    if (error == cudaSuccess && state != cudaStreamCaptureStatusActive) error = cudaErrorIllegalState;
    if (error == cudaSuccess) error = cudaGraphGetNodes(graph, nullptr, &nodes);
    std::vector<cudaGraphNode_t> all(nodes);
    if (error == cudaSuccess) error = cudaGraphGetNodes(graph, all.data(), &nodes);
    for (; counted_nodes_ < nodes && error == cudaSuccess; ++counted_nodes_) {
      cudaGraphNodeType type{};
      error = cudaGraphNodeGetType(all[counted_nodes_], &type);
      if (type == cudaGraphNodeTypeKernel) ++counted_kernels_;
    }
    *count = counted_kernels_;
    return status_of(error, sink);
  } catch (const std::bad_alloc&) {
    sdk::write_line(sink, "no host memory");
    return abi::Status::out_of_memory;
  }
  abi::Status end_capture(void** graph, abi::TextSink sink) noexcept override {
    *graph = nullptr;
    cudaGraph_t recorded = nullptr;
    cudaError_t error = cudaStreamEndCapture(stream_, &recorded);
    cudaGraphExec_t executable = nullptr;
    if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, recorded, 0);
    if (recorded != nullptr) cudaGraphDestroy(recorded);
    if (error != cudaSuccess) cudaGetLastError();
    *graph = executable;
    return status_of(error, sink);
  }
  abi::Status replay(void* graph, abi::TextSink sink) noexcept override {
    return status_of(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), queue()), sink);
  }
  void destroy_graph(void* graph) noexcept override { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

  abi::Status begin_trace(abi::TextSink sink) noexcept override { return begin_kernel_trace(sink); }
  abi::Status end_trace(NoteKernel note, void* context, abi::TextSink sink) noexcept override {
    const abi::Status waited = status_of(cudaStreamSynchronize(stream_), sink);
    const abi::Status ended = end_kernel_trace(note, context, sink);
    return waited != abi::Status::ok ? waited : ended;
  }

  abi::Status begin_stamps(abi::TextSink sink) noexcept override { return status_of(stamps_.clear(queue()), sink); }
  abi::Status stamp(abi::TextSink sink) noexcept override { return status_of(stamps_.queue(queue()), sink); }
  abi::Status end_stamps(const std::uint64_t** moments, std::uint64_t* count, abi::TextSink sink) noexcept override
      try {
    const abi::Status status = status_of(stamps_.read(queue(), moments_), sink);
    *moments = moments_.data();
    *count = moments_.size();
    return status;
  } catch (const std::bad_alloc&) {
    sdk::write_line(sink, "no host memory");
    return abi::Status::out_of_memory;
  }
  abi::Status read_rates(std::uint64_t bytes, std::int64_t repeats, double* rates,
                         abi::TextSink sink) noexcept override {
    return status_of(measure_read_rates(bytes, repeats, rates, queue()), sink);
  }
  abi::Status multiply_rates(std::int64_t repeats, double* rates, abi::TextSink sink) noexcept override {
    return status_of(measure_multiply_rates(repeats, rates, queue()), sink);
  }

  abi::Status embed(const abi::WeightView& table, const std::int32_t* ids, const std::int32_t* previous,
                    std::int64_t tokens, float scale, float* out, abi::TextSink sink) noexcept override {
    return status_of(launch_embed(table, ids, previous, tokens, scale, out, queue()), sink);
  }
  abi::Status rotary(const std::int32_t* positions, std::int64_t tokens, const float* inverse_frequency,
                     const RotaryAngles& angles, abi::TextSink sink) noexcept override {
    return status_of(launch_rotary(positions, tokens, inverse_frequency, angles, queue()), sink);
  }
  abi::Status rms_norm(const float* in, const float* weight, float epsilon, std::int64_t tokens, std::int64_t width,
                       void* out, abi::TextSink sink) noexcept override {
    return status_of(launch_rms_norm(in, weight, epsilon, tokens, width, out, queue()), sink);
  }
  abi::Status residual_norm(const ResidualInput& input, abi::TextSink sink) noexcept override {
    return status_of(launch_residual_norm(input, queue()), sink);
  }
  abi::Status prepare_attention(const AttentionInput& input, abi::TextSink sink) noexcept override {
    return status_of(launch_prepare_attention(input, queue()), sink);
  }
  abi::Status gelu_gate(const void* gate_up, std::int64_t tokens, std::int64_t width, void* out,
                        abi::TextSink sink) noexcept override {
    return status_of(launch_gelu_gate(gate_up, tokens, width, out, queue()), sink);
  }
  abi::Status gather_rows(const float* in, const std::int32_t* rows, std::int64_t count, std::int64_t width, float* out,
                          abi::TextSink sink) noexcept override {
    return status_of(launch_gather_rows(in, rows, count, width, out, queue()), sink);
  }
  abi::Status soft_cap(float* values, std::int64_t count, float cap, abi::TextSink sink) noexcept override {
    return status_of(launch_soft_cap(values, count, cap, queue()), sink);
  }
  abi::Status argmax(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap, std::int32_t* ids,
                     abi::TextSink sink) noexcept override {
    if (rows > kMaxArgmaxRows) {
      sdk::write_line(sink, sdk::concat("argmax of ", rows, " rows; at most ", kMaxArgmaxRows));
      return abi::Status::invalid_argument;
    }
    return status_of(launch_argmax(logits, rows, vocabulary, cap, ids, argmax_scratch_, queue()), sink);
  }

  abi::Status sample(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap, const RowSampling* how,
                     std::int32_t* ids, abi::TextSink sink) noexcept override {
    return status_of(launch_sample(logits, rows, vocabulary, cap, how, ids, queue()), sink);
  }

  void destroy() noexcept override { delete this; }

 private:
  static constexpr std::uint64_t kUploadBytes = 16u << 20;

  // The stream, for what comes after the copy that begin_read_back() asked for.
  cudaStream_t queue() noexcept {
    // An error of this launch stays with the stream: whoever asked meets it in end_read_back().
    static_cast<void>(exchange_.flush(stream_));
    return stream_;
  }

  std::int32_t ordinal_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t copied_ = nullptr;
  void* argmax_scratch_ = nullptr;
  Pinned upload_, read_;
  Exchange exchange_;
  std::uint64_t upload_used_ = 0;
  Stamps stamps_;
  std::vector<std::uint64_t> moments_;
  std::size_t counted_nodes_ = 0;  // of the recording at hand
  std::int64_t counted_kernels_ = 0;
  std::map<void*, void*> shifted_;  // aligned address -> what cudaMalloc gave
};

abi::Status make_device(std::uint32_t version, std::int32_t ordinal, DeviceApi** device, abi::TextSink sink) {
  if (version != kDeviceApiVersion) {
    sdk::write_line(sink, sdk::concat("libfacet_cuda.so speaks version ", kDeviceApiVersion, ", the program ", version,
                                      "; install both from one build"));
    return abi::Status::unavailable;
  }
  std::string missing = sdk::why_no_gpu();
  cudaDeviceProp properties = {};
  if (missing.empty()) {
    const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
    if (error != cudaSuccess) missing = sdk::concat("no GPU: ", cudaGetErrorString(error));
  }
  if (!missing.empty()) {
    sdk::write_line(sink, missing);
    return abi::Status::unavailable;
  }
  if (properties.major != 9 || properties.minor != 0) {
    sdk::write_line(sink, sdk::concat(properties.name, " has compute capability ", properties.major, ".",
                                      properties.minor, "; this build has kernels for 9.0"));
    return abi::Status::unavailable;
  }
  auto made = std::make_unique<Device>(ordinal);
  const abi::Status status = status_of(made->start(), sink);
  if (status == abi::Status::ok) *device = made.release();
  return status;
}

}  // namespace
}  // namespace facet::cuda

extern "C" __attribute__((visibility("default"))) facet::abi::Status facet_cuda_device_v6(
    std::uint32_t version, std::int32_t ordinal, facet::cuda::DeviceApi** device, facet::abi::TextSink error) {
  try {
    return facet::cuda::make_device(version, ordinal, device, error);
  } catch (...) {
    return facet::abi::Status::failed;
  }
}
