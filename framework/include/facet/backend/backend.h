// Device services and the small fused operations between plugin kernels. A model is written against this interface
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "facet/abi/kv_layout.h"
#include "facet/abi/weight.h"
#include "facet/backend/device_profile.h"
#include "facet/memory/memory_plan.h"
#include "facet/sampling/token_draw.h"

namespace facet {

class Backend;

// Device memory that returns to its backend. Movable.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Backend* backend, void* data, std::uint64_t bytes) : backend_(backend), data_(data), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceBuffer();

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::uint64_t bytes() const { return bytes_; }
  abi::Memory memory() const { return {data_, bytes_}; }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// Frequencies of rotary embedding: pair (i, i + head_dim / 2) turns by position * inverse_frequency[i] for i < live;
// other pairs stay. Proportional rotary of Gemma 4 has live = factor * head_dim / 2 and the exponent over the full
// head_dim.
struct RotaryAngles {
  std::int64_t live = 0;
  float* cosine = nullptr;  // [tokens, live]
  float* sine = nullptr;    // [tokens, live]
};

// From the raw projections of a layer to rotated queries and written KV rows.
//   q = rope(rmsnorm(q) * q_norm), k = rope(rmsnorm(k) * k_norm), v = rmsnorm(v); with values_from_keys v is the raw k.
// Where the view has the shared form (then values_from_keys, and its key_channels are 2 rotary.live), pairs of k past
// rotary.live are not stored, and those of q are multiplied by k_norm too.
struct AttentionInput {
  const void* projections = nullptr;  // [tokens, stride] activations: q heads, k heads, then v heads unless
                                      // values_from_keys
  std::int64_t stride = 0;
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  bool values_from_keys = false;
  const float* query_norm = nullptr;  // [head_dim]
  const float* key_norm = nullptr;    // [head_dim]
  float epsilon = 0;
  RotaryAngles rotary;
  const std::int32_t* positions = nullptr;  // [tokens]
  const std::int32_t* sequence = nullptr;   // [tokens]: index into the block table; below 0: a padding row, no KV row
  std::int64_t tokens = 0;
  const abi::KvView* kv = nullptr;
  void* queries = nullptr;  // out [tokens, query_heads, head_dim] activations
};

// h = (hidden + rmsnorm(update) * post_norm) * scale, or hidden itself when update is null; hidden_out = h, where
// hidden_out is not hidden; and, unless next_norm is null, normed = rmsnorm(h) * next_norm.
struct ResidualInput {
  const float* hidden = nullptr;     // [tokens, width]
  const void* update = nullptr;      // [tokens, width] activations, or null
  const float* post_norm = nullptr;  // [width]
  float scale = 1.0f;
  const float* next_norm = nullptr;  // [width]
  float* hidden_out = nullptr;       // out [tokens, width]; may be null when update is
  void* normed = nullptr;            // out [tokens, width] activations
  std::int64_t tokens = 0;
  std::int64_t width = 0;
  float epsilon = 0;
};

// A weight matrix where the backend's own operations can read it: the checkpoint's memory, or a copy of it.
struct PlacedWeight {
  abi::WeightView view{};
  std::vector<DeviceBuffer> copies;
};

// One kernel of a trace; nanoseconds of a clock that all kernels of the trace share.
struct KernelTime {
  std::string name;  // as the compiler mangled it
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;
  std::int32_t part = -1;  // that enter_part() named before it was queued; -1: none, or not known
};

// One recorded step on the device's clock: its first kernel began, its last one ended.
struct StepTime {
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;
  bool replayed = false;  // false: it was recorded on the way, so the device waited for that before
};

// "Activations" are of activation_type(), row-major [tokens, width]; the residual stream and logits are f32. Operations
// are queued on the stream in call order; all pointers but those of upload() and download() are device memory.
class Backend : public DeviceProfile {
 public:
  virtual abi::Stream stream() const = 0;
  // Zero-filled; throws Error(run) with tag, bytes and what is free when there is no room. tag is a literal.
  virtual DeviceBuffer allocate(std::uint64_t bytes, std::uint64_t alignment, const char* tag) = 0;
  virtual void deallocate(void* data, std::uint64_t bytes) noexcept = 0;
  // Bytes by tag, now and at most.
  virtual std::vector<MemoryAccount> accounts() const = 0;

  // Host to device; the host memory may change once the call returns.
  virtual void upload(void* device, const void* host, std::uint64_t bytes) = 0;
  // The same bytes in host memory, after everything queued before; valid until the next read_back().
  virtual const void* read_back(const void* device, std::uint64_t bytes) = 0;
  // The same in two halves, of which the second waits for what was queued before the first. One at a time.
  virtual void begin_read_back(const void* device, std::uint64_t bytes) = 0;
  virtual const void* end_read_back() = 0;
  virtual PlacedWeight place(const abi::WeightView& weight, const char* tag) = 0;

  // Rows that a decoding step of `rows` is launched with, at most `limit`: recorded steps exist for a few counts only.
  virtual std::int64_t recorded_rows(std::int64_t rows, std::int64_t limit) const = 0;
  // Calls `launch`, which only queues operations and plugin runs; where the device can, it is recorded at the owner's
  // first call for `key` and replayed from then on, so it may depend on nothing but the key and the owner's device
  // memory. False: it was replayed. Models that share a backend are different owners.
  virtual bool run_recorded(const void* owner, std::int64_t key, const std::function<void()>& launch) = 0;
  // Drops what was recorded for an owner, which calls this before it goes.
  virtual void forget_recorded(const void* owner) noexcept = 0;

  // What is queued from here on belongs to part `part` (0 or more) of the owner's step, or to none (-1): for trace(),
  // which knows the parts of what run_recorded() and run_step() run.
  virtual void enter_part(std::int32_t part) = 0;
  // Calls `launch`, a step that is not worth recording; inside trace() it is recorded and replayed all the same.
  virtual void run_step(const std::function<void()>& launch) = 0;

  // Kernels that `work` runs on the device, in the order of their ends. Throws Error(run) where the device has no
  // trace: the CPU, or CUDA without its profiling library. Tracing may slow the work down.
  virtual std::vector<KernelTime> trace(const std::function<void()>& work) = 0;
  // Steps that `work` runs by run_recorded(), in order; the first 32,768 of them. Nothing is traced: a small kernel at
  // each end of the step notes the time. Throws Error(run) on the CPU, which records no steps.
  virtual std::vector<StepTime> time_steps(const std::function<void()>& work) = 0;
  // Bytes a second that the device reads from its memory: one value for each of `repeats` passes over `bytes`, which
  // should be several times its last-level cache, after passes that are not counted.
  virtual std::vector<double> read_rates(std::uint64_t bytes, std::int64_t repeats) = 0;
  // Operations a second of products of bf16 with fp32 sums, two an element; one value a repeat. Empty on the CPU.
  virtual std::vector<double> multiply_rates(std::int64_t repeats) = 0;

  // out[t] = row ids[t] of the table * scale. Any weight format; ids are checked by the caller. Table from place().
  // An id below 0 stands for previous[-1 - id], or for 0 where that is below 0; without one, previous may be null.
  virtual void embed(const abi::WeightView& table, const std::int32_t* ids, const std::int32_t* previous,
                     std::int64_t tokens, float scale, float* out) = 0;
  // cosine and sine of angles.live frequencies at each position, with fp32 products as the reference model has them.
  virtual void rotary(const std::int32_t* positions, std::int64_t tokens, const float* inverse_frequency,
                      const RotaryAngles& angles) = 0;
  // out[t] = in[t] / sqrt(mean(in[t]^2) + epsilon) * weight, out in activations. Root mean square normalisation, fp32
  // inside.
  virtual void rms_norm(const float* in, const float* weight, float epsilon, std::int64_t tokens, std::int64_t width,
                        void* out) = 0;
  virtual void residual_norm(const ResidualInput& input) = 0;
  virtual void prepare_attention(const AttentionInput& input) = 0;
  // out[t, i] = gelu_tanh(gate_up[t, i]) * gate_up[t, width + i]
  virtual void gelu_gate(const void* gate_up, std::int64_t tokens, std::int64_t width, void* out) = 0;
  // out[r] = in[rows[r]]
  virtual void gather_rows(const float* in, const std::int32_t* rows, std::int64_t count, std::int64_t width,
                           float* out) = 0;
  // x = cap * tanh(x / cap), in place
  virtual void soft_cap(float* values, std::int64_t count, float cap) = 0;
  // Both choose by what soft_cap() with `cap` would make of the logits, bit by bit; 0: by the logits as they are.
  // ids[r] = index of the largest of logits[r, :], the lowest among equals; -1 where one is NaN or plus infinity or all
  // are minus infinity.
  virtual void argmax(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap,
                      std::int32_t* ids) = 0;
  // ids[r] = what TokenDraw::choose() takes of logits[r, :] by how[r], up to rounding.
  virtual void sample(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap,
                      const RowSampling* how, std::int32_t* ids) = 0;
};

}  // namespace facet
