// The line between the program, which links no CUDA, and libfacet_cuda.so, which does: loaded at run time, plain data
// and status codes only, exceptions never.
#pragma once

#include "facet/abi/types.h"
#include "facet/backend/backend.h"

namespace facet::cuda {

// Raised with every change of this header or of the structs of backend.h that it passes on.
inline constexpr std::uint32_t kDeviceApiVersion = 6;
inline constexpr const char* kDeviceApiSymbol = "facet_cuda_device_v6";

struct DeviceFacts {
  char name[128];
  std::int32_t compute_major, compute_minor;
  std::uint64_t total_bytes, free_bytes;
};

// recorded: it belongs to a recorded step.
using NoteKernel = void (*)(void* context, const char* name, std::uint64_t start_ns, std::uint64_t end_ns,
                            bool recorded);

// One device and one stream. Not for use by several threads at once. Everything but allocation and read_back() is
// queued.
class DeviceApi {
 public:
  virtual abi::Status facts(DeviceFacts* facts, abi::TextSink error) noexcept = 0;
  virtual abi::Stream stream() noexcept = 0;
  // Zero-filled.
  virtual abi::Status allocate(std::uint64_t bytes, std::uint64_t alignment, void** data,
                               abi::TextSink error) noexcept = 0;
  virtual void deallocate(void* data) noexcept = 0;
  virtual abi::Status upload(void* device, const void* host, std::uint64_t bytes, abi::TextSink error) noexcept = 0;
  // Waits; *host is pinned memory that stays valid until the next call.
  virtual abi::Status read_back(const void* device, std::uint64_t bytes, const void** host,
                                abi::TextSink error) noexcept = 0;
  // The same in two halves with memory of its own; the second waits for what was queued before the first.
  virtual abi::Status begin_read_back(const void* device, std::uint64_t bytes, abi::TextSink error) noexcept = 0;
  virtual abi::Status end_read_back(const void** host, abi::TextSink error) noexcept = 0;

  // From begin_capture() to end_capture() launches are recorded instead of run. end_capture() gives null on failure.
  virtual abi::Status begin_capture(abi::TextSink error) noexcept = 0;
  // Kernels recorded so far.
  virtual abi::Status captured_kernels(std::int64_t* count, abi::TextSink error) noexcept = 0;
  virtual abi::Status end_capture(void** graph, abi::TextSink error) noexcept = 0;
  virtual abi::Status replay(void* graph, abi::TextSink error) noexcept = 0;
  virtual void destroy_graph(void* graph) noexcept = 0;

  // Kernels between the two calls, in the order of their ends; end_trace() waits for the device.
  virtual abi::Status begin_trace(abi::TextSink error) noexcept = 0;
  virtual abi::Status end_trace(NoteKernel note, void* context, abi::TextSink error) noexcept = 0;

  // Forgets all moments; queues a kernel that notes one; waits and hands them out in the order of the queue, in
  // nanoseconds of the device's clock, valid until the next call.
  virtual abi::Status begin_stamps(abi::TextSink error) noexcept = 0;
  virtual abi::Status stamp(abi::TextSink error) noexcept = 0;
  virtual abi::Status end_stamps(const std::uint64_t** moments, std::uint64_t* count, abi::TextSink error) noexcept = 0;
  // rates: [repeats] bytes a second.
  virtual abi::Status read_rates(std::uint64_t bytes, std::int64_t repeats, double* rates,
                                 abi::TextSink error) noexcept = 0;
  // rates: [repeats] operations a second.
  virtual abi::Status multiply_rates(std::int64_t repeats, double* rates, abi::TextSink error) noexcept = 0;

  // The operations of Backend.
  virtual abi::Status embed(const abi::WeightView& table, const std::int32_t* ids, const std::int32_t* previous,
                            std::int64_t tokens, float scale, float* out, abi::TextSink error) noexcept = 0;
  virtual abi::Status rotary(const std::int32_t* positions, std::int64_t tokens, const float* inverse_frequency,
                             const RotaryAngles& angles, abi::TextSink error) noexcept = 0;
  virtual abi::Status rms_norm(const float* in, const float* weight, float epsilon, std::int64_t tokens,
                               std::int64_t width, void* out, abi::TextSink error) noexcept = 0;
  virtual abi::Status residual_norm(const ResidualInput& input, abi::TextSink error) noexcept = 0;
  virtual abi::Status prepare_attention(const AttentionInput& input, abi::TextSink error) noexcept = 0;
  virtual abi::Status gelu_gate(const void* gate_up, std::int64_t tokens, std::int64_t width, void* out,
                                abi::TextSink error) noexcept = 0;
  virtual abi::Status gather_rows(const float* in, const std::int32_t* rows, std::int64_t count, std::int64_t width,
                                  float* out, abi::TextSink error) noexcept = 0;
  virtual abi::Status soft_cap(float* values, std::int64_t count, float cap, abi::TextSink error) noexcept = 0;
  virtual abi::Status argmax(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap,
                             std::int32_t* ids, abi::TextSink error) noexcept = 0;
  virtual abi::Status sample(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap,
                             const RowSampling* how, std::int32_t* ids, abi::TextSink error) noexcept = 0;

  virtual void destroy() noexcept = 0;

 protected:
  ~DeviceApi() = default;
};

// The entry: makes the API of device `ordinal`, or says why there is none.
using MakeDevice = abi::Status (*)(std::uint32_t version, std::int32_t ordinal, DeviceApi** device,
                                   abi::TextSink error);

}  // namespace facet::cuda
