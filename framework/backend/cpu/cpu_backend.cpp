#include "facet/backend/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "facet/base/error.h"
#include "facet/checkpoint/linear_weight.h"
#include "facet/measure/machine_limits.h"
#include "facet/sampling/sampler.h"
#include "facet/sdk/host.h"
#include "facet/sdk/kv_rows.h"
#include "row_ops.h"

namespace facet {
namespace {

// Below this many elements a loop stays on the calling thread: waking another one costs about as much as 16 K simple
// operations.
constexpr std::int64_t kParallelElements = 16 * 1024;
// Largest head the model family has; rows of a head are prepared on the stack.
constexpr std::int64_t kMaxHeadDim = 1024;

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(HostServices& services) : services_(services), host_(services.table()) {}

  abi::Device device() const override { return abi::Device::cpu; }
  abi::Stream stream() const override { return {abi::Device::cpu, 0, nullptr}; }
  abi::DType activation_type() const override { return abi::DType::f32; }
  std::string description() const override {
    return fmt::format("cpu, {} threads, {}", services_.table()->worker_count,
                       describe_cpu_features(services_.table()->cpu_features));
  }

  std::optional<std::uint64_t> free_memory() const override { return std::nullopt; }
  DeviceBuffer allocate(std::uint64_t bytes, std::uint64_t alignment, const char* tag) override {
    return bytes == 0 ? DeviceBuffer() : DeviceBuffer(this, services_.allocate(bytes, alignment, tag), bytes);
  }
  void deallocate(void* data, std::uint64_t bytes) noexcept override { services_.deallocate(data, bytes); }

  std::vector<MemoryAccount> accounts() const override { return services_.accounts(); }

  void upload(void* device, const void* host, std::uint64_t bytes) override { std::memcpy(device, host, bytes); }
  const void* read_back(const void* device, std::uint64_t /*bytes*/) override { return device; }
  // Everything before has ended; the memory may be written again before the second half.
  void begin_read_back(const void* device, std::uint64_t bytes) override {
    const auto* data = static_cast<const char*>(device);
    read_back_.assign(data, data + bytes);
  }
  const void* end_read_back() override { return read_back_.data(); }
  PlacedWeight place(const abi::WeightView& weight, const char* /*tag*/) override { return {weight, {}}; }
  std::uint64_t placed_bytes(std::uint64_t /*values*/, std::uint64_t /*side*/) const override { return 0; }
  std::int64_t recorded_rows(std::int64_t rows, std::int64_t /*limit*/) const override { return rows; }
  void forget_recorded(const void* /*owner*/) noexcept override {}
  bool run_recorded(const void* /*owner*/, std::int64_t /*key*/, const std::function<void()>& launch) override {
    launch();
    return true;
  }
  void enter_part(std::int32_t /*part*/) override {}
  void run_step(const std::function<void()>& launch) override { launch(); }
  std::vector<KernelTime> trace(const std::function<void()>& /*work*/) override {
    throw_error(ErrorKind::run,
                "the CPU has no trace of kernels; the share of time outside plugins is in the output of 'facet bench', "
                "times by plugin in the record of 'facet run --json'");
  }
  std::vector<StepTime> time_steps(const std::function<void()>& /*work*/) override {
    throw_error(ErrorKind::run, "the CPU runs steps as they are called and records none whose gaps could be timed");
  }
  std::vector<double> read_rates(std::uint64_t bytes, std::int64_t repeats) override {
    return measure_read_bandwidth(services_.table()->worker_count, static_cast<std::int64_t>(bytes), repeats);
  }
  std::vector<double> multiply_rates(std::int64_t /*repeats*/) override { return {}; }

  void embed(const abi::WeightView& table, const std::int32_t* ids, const std::int32_t* previous, std::int64_t tokens,
             float scale, float* out) override {
    const std::int64_t width = table.in_features;
    for_rows(tokens, width, [&](std::int64_t t) {
      float* row = out + t * width;
      dequantize_row(table, ids[t] < 0 ? std::max(previous[-1 - ids[t]], 0) : ids[t], row);
      for (std::int64_t i = 0; i < width; ++i) row[i] *= scale;
    });
  }

  void rotary(const std::int32_t* positions, std::int64_t tokens, const float* inverse_frequency,
              const RotaryAngles& angles) override {
    // sin and cos cost about 16 simple operations.
    for_rows(tokens, 16 * angles.live, [&](std::int64_t t) {
      for (std::int64_t i = 0; i < angles.live; ++i) {
        const float angle = static_cast<float>(positions[t]) * inverse_frequency[i];
        angles.cosine[t * angles.live + i] = std::cos(angle);
        angles.sine[t * angles.live + i] = std::sin(angle);
      }
    });
  }

  void rms_norm(const float* in, const float* weight, float epsilon, std::int64_t tokens, std::int64_t width,
                void* out) override {
    auto* normed = static_cast<float*>(out);
    for_rows(tokens, width,
             [&](std::int64_t t) { cpu::norm_row(in + t * width, weight, epsilon, width, normed + t * width); });
  }

  void residual_norm(const ResidualInput& x) override {
    const auto* update = static_cast<const float*>(x.update);
    auto* normed = static_cast<float*>(x.normed);
    for_rows(x.tokens, 2 * x.width, [&](std::int64_t t) {
      const float* hidden = x.hidden + t * x.width;
      if (update != nullptr) {
        float* out = x.hidden_out + t * x.width;
        cpu::residual_row(hidden, update + t * x.width, x.post_norm, x.scale, x.epsilon, x.width, out);
        hidden = out;
      }
      if (x.next_norm != nullptr) cpu::norm_row(hidden, x.next_norm, x.epsilon, x.width, normed + t * x.width);
    });
  }

  void prepare_attention(const AttentionInput& x) override {
    const std::int64_t heads = x.query_heads + 2 * x.kv_heads;
    for_rows(x.tokens, 2 * heads * x.head_dim, [&](std::int64_t t) { prepare_token(x, t); });
  }

  void gelu_gate(const void* gate_up, std::int64_t tokens, std::int64_t width, void* out) override {
    // One row of a wide feed-forward is worth splitting, so the unit is a piece of a row.
    constexpr std::int64_t kPiece = 2048;
    const std::int64_t pieces = sdk::ceil_div(width, kPiece);
    for_rows(tokens * pieces, 8 * std::min(kPiece, width), [&](std::int64_t index) {
      const std::int64_t t = index / pieces, begin = index % pieces * kPiece;
      const float* gate = static_cast<const float*>(gate_up) + t * 2 * width + begin;
      cpu::gelu_gate_row(gate, gate + width, std::min(kPiece, width - begin),
                         static_cast<float*>(out) + t * width + begin);
    });
  }

  void gather_rows(const float* in, const std::int32_t* rows, std::int64_t count, std::int64_t width,
                   float* out) override {
    for (std::int64_t r = 0; r < count; ++r)
      std::memcpy(out + r * width, in + rows[r] * width, sizeof(float) * static_cast<std::size_t>(width));
  }

  void soft_cap(float* values, std::int64_t count, float cap) override {
    constexpr std::int64_t kPiece = 4096;
    for_rows(sdk::ceil_div(count, kPiece), 8 * std::min(kPiece, count), [&](std::int64_t piece) {
      const std::int64_t begin = piece * kPiece;
      cpu::soft_cap_row(values + begin, std::min(kPiece, count - begin), cap);
    });
  }

  void argmax(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap, std::int32_t* ids) override {
    for_rows(rows, (cap > 0 ? 9 : 1) * vocabulary,
             [&](std::int64_t r) { ids[r] = most_probable(capped_row(logits + r * vocabulary, vocabulary, cap)); });
  }
  void sample(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap, const RowSampling* how,
              std::int32_t* ids) override {
    // A draw is worth some twenty simple operations a token.
    for_rows(rows, 20 * vocabulary, [&](std::int64_t r) {
      static thread_local TokenDraw draw;
      ids[r] = draw.choose(capped_row(logits + r * vocabulary, vocabulary, cap), how[r]);
    });
  }

 private:
  // body(row) for every row, in parallel when the whole is worth it.
  template <typename Body>
  void for_rows(std::int64_t rows, std::int64_t cost, const Body& body) {
    if (rows * cost <= kParallelElements) {
      for (std::int64_t row = 0; row < rows; ++row) body(row);
      return;
    }
    const std::int64_t grain = std::max<std::int64_t>(1, kParallelElements / 2 / std::max<std::int64_t>(1, cost));
    host_.parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
      for (std::int64_t row = begin; row < end; ++row) body(row);
    });
  }

  // The row with the cap, in memory of the calling thread until its next call; without a cap the row itself.
  static std::span<const float> capped_row(const float* logits, std::int64_t vocabulary, float cap) {
    if (cap == 0) return {logits, static_cast<std::size_t>(vocabulary)};
    static thread_local std::vector<float> row;
    row.assign(logits, logits + vocabulary);
    cpu::soft_cap_row(row.data(), vocabulary, cap);
    return row;
  }

  static void prepare_token(const AttentionInput& x, std::int64_t t) {
    const std::int64_t dim = x.head_dim;
    const float* q = static_cast<const float*>(x.projections) + t * x.stride;
    const float* k = q + x.query_heads * dim;
    const float* v = x.values_from_keys ? k : k + x.kv_heads * dim;
    const float* cosine = x.rotary.cosine + t * x.rotary.live;
    const float* sine = x.rotary.sine + t * x.rotary.live;
    const std::int64_t live = x.rotary.live, key_width = sdk::key_width(dim, x.kv->key_channels);
    const bool shared = x.kv->key_channels > 0;
    for (std::int64_t head = 0; head < x.query_heads; ++head) {
      float* out = static_cast<float*>(x.queries) + (t * x.query_heads + head) * dim;
      cpu::norm_row(q + head * dim, x.query_norm, x.epsilon, dim, out);
      cpu::rotate_row(out, cosine, sine, live, dim);
      if (shared) cpu::scale_unturned_row(out, x.key_norm, live, dim);
    }
    if (x.sequence[t] < 0) return;
    const sdk::KvRun run = sdk::kv_run(*x.kv, x.sequence[t], x.positions[t], x.positions[t] + 1);
    float row[kMaxHeadDim];
    for (std::int64_t head = 0; head < x.kv_heads; ++head) {
      const std::int64_t offset = run.offset + head * x.kv->head_stride;
      const std::int64_t scale_offset = run.scale_offset + head * x.kv->scale_head_stride;
      cpu::norm_row(k + head * dim, x.key_norm, x.epsilon, dim, row);
      cpu::rotate_row(row, cosine, sine, live, dim);
      if (shared) std::copy_n(row + dim / 2, live, row + live);  // the pairs that turn, one half behind the other
      store_row(x.kv->layout, row, key_width, x.kv->keys, offset, x.kv->key_scales, scale_offset);
      cpu::norm_row(v + head * dim, nullptr, x.epsilon, dim, row);
      store_row(x.kv->layout, row, dim, x.kv->values, offset, x.kv->value_scales, scale_offset);
    }
  }

  static void store_row(const abi::KvLayout& layout, const float* row, std::int64_t dim, void* base,
                        std::int64_t offset, float* scales, std::int64_t scale_offset) {
    switch (layout.element) {
      case abi::DType::f32:
        std::memcpy(static_cast<float*>(base) + offset, row, sizeof(float) * static_cast<std::size_t>(dim));
        break;
      case abi::DType::bf16:
        cpu::store_bf16_row(row, dim, static_cast<std::uint16_t*>(base) + offset);
        break;
      default:
        scales[scale_offset] = cpu::store_i8_row(row, dim, static_cast<std::int8_t*>(base) + offset);
        break;
    }
  }

  HostServices& services_;
  sdk::Host host_;
  std::vector<char> read_back_;  // between begin_read_back() and end_read_back()
};

}  // namespace

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) backend_->deallocate(data_, bytes_);
}

std::unique_ptr<Backend> make_cpu_backend(HostServices& services) {
  return std::make_unique<CpuBackend>(services);
}

}  // namespace facet
