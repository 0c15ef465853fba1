#include "facet/backend/cuda_backend.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "device_api.h"
#include "device_check.h"
#include "facet/base/error.h"
#include "facet/base/program.h"
#include "facet/base/text.h"
#include "facet/plugin/cuda_plugins.h"
#include "facet/plugin/sink_text.h"
#include "recorded_steps.h"

namespace facet {
namespace {

namespace fs = std::filesystem;
using cuda::check;
using cuda::DeviceApi;

// Rows that decoding steps are recorded for.
constexpr std::int64_t kRecordedRows[] = {1, 2, 4, 8, 16, 24, 32, 48, 64};

[[noreturn]] void unavailable(const std::string& why) {
  throw Error(ErrorKind::config, why);
}

DeviceApi* open_device() {
  const fs::path file = library_of_program("FACET_CUDA_LIBRARY", "libfacet_cuda.so");
  std::error_code ignored;
  if (!fs::exists(file, ignored))
    unavailable(fmt::format("there is no {}, which a build with CUDA makes ({})", file.string(), kCudaBuildCure));
  // Never unloaded: the driver keeps threads of its own.
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) unavailable(::dlerror());
  const auto make = reinterpret_cast<cuda::MakeDevice>(::dlsym(library, cuda::kDeviceApiSymbol));
  if (make == nullptr)
    unavailable(fmt::format("{} has no {}: it is of another version", file.string(), cuda::kDeviceApiSymbol));
  DeviceApi* device = nullptr;
  SinkText text;
  if (make(cuda::kDeviceApiVersion, 0, &device, text.sink()) != abi::Status::ok) unavailable(text.text());
  return device;
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(DeviceApi* device) : device_(device), steps_(std::make_unique<cuda::RecordedSteps>(*device)) {}
  ~CudaBackend() override {
    steps_.reset();
    device_->destroy();
  }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  abi::Device device() const override { return abi::Device::cuda; }
  abi::Stream stream() const override { return device_->stream(); }
  abi::DType activation_type() const override { return abi::DType::bf16; }
  std::string description() const override {
    const cuda::DeviceFacts facts = this->facts();
    return fmt::format("{}, {}", facts.name, format_bytes(facts.total_bytes));
  }

  std::optional<std::uint64_t> free_memory() const override { return facts().free_bytes; }
  DeviceBuffer allocate(std::uint64_t bytes, std::uint64_t alignment, const char* tag) override {
    if (bytes == 0) return {};
    void* data = nullptr;
    SinkText text;
    if (device_->allocate(bytes, alignment, &data, text.sink()) != abi::Status::ok) {
      throw_error(ErrorKind::run,
                  "no device memory for {} ({} bytes, '{}'): {}; {} are free; 'facet plan' shows what a configuration "
                  "needs",
                  format_bytes(bytes), bytes, tag, text.text(), format_bytes(facts().free_bytes));
    }
    count(data, bytes, tag);
    return {this, data, bytes};
  }
  void deallocate(void* data, std::uint64_t bytes) noexcept override {
    const auto found = tags_.find(data);
    if (found != tags_.end()) {
      accounts_[found->second].bytes -= bytes;
      tags_.erase(found);
    }
    device_->deallocate(data);
  }
  std::vector<MemoryAccount> accounts() const override { return accounts_; }

  void upload(void* device, const void* host, std::uint64_t bytes) override {
    SinkText text;
    check(device_->upload(device, host, bytes, text.sink()), "copying to the device", text);
  }
  const void* read_back(const void* device, std::uint64_t bytes) override {
    SinkText text;
    const void* host = nullptr;
    check(device_->read_back(device, bytes, &host, text.sink()), "copying from the device", text);
    return host;
  }

  void begin_read_back(const void* device, std::uint64_t bytes) override {
    SinkText text;
    check(device_->begin_read_back(device, bytes, text.sink()), "queueing a copy from the device", text);
  }
  const void* end_read_back() override {
    SinkText text;
    const void* host = nullptr;
    check(device_->end_read_back(&host, text.sink()), "copying from the device", text);
    return host;
  }

  PlacedWeight place(const abi::WeightView& weight, const char* tag) override {
    const auto rows = static_cast<std::uint64_t>(weight.out_features);
    const std::uint64_t groups =
        weight.group_size == 0
            ? 0
            : static_cast<std::uint64_t>((weight.in_features + weight.group_size - 1) / weight.group_size);
    PlacedWeight placed{weight, {}};
    const auto copy = [&](const void* from, std::uint64_t bytes) -> void* {
      if (from == nullptr || bytes == 0) return nullptr;
      placed.copies.push_back(allocate(bytes, 256, tag));
      upload(placed.copies.back().data(), from, bytes);
      return placed.copies.back().data();
    };
    placed.view.values = copy(weight.values, rows * static_cast<std::uint64_t>(weight.row_bytes));
    placed.view.scales = static_cast<const float*>(copy(weight.scales, rows * groups * sizeof(float)));
    placed.view.zeros = static_cast<const std::uint8_t*>(copy(weight.zeros, rows * groups));
    return placed;
  }
  std::uint64_t placed_bytes(std::uint64_t values, std::uint64_t side) const override { return values + side; }

  std::int64_t recorded_rows(std::int64_t rows, std::int64_t limit) const override {
    const auto* found = std::lower_bound(std::begin(kRecordedRows), std::end(kRecordedRows), rows);
    return std::min(found == std::end(kRecordedRows) ? rows : *found, limit);
  }
  bool run_recorded(const void* owner, std::int64_t key, const std::function<void()>& launch) override {
    return steps_->run(owner, key, launch);
  }
  void run_step(const std::function<void()>& launch) override { steps_->run_once(launch); }
  void forget_recorded(const void* owner) noexcept override { steps_->forget(owner); }
  void enter_part(std::int32_t part) override { steps_->enter_part(part); }
  std::vector<KernelTime> trace(const std::function<void()>& work) override { return steps_->trace(work); }
  std::vector<StepTime> time_steps(const std::function<void()>& work) override { return steps_->time(work); }

  std::vector<double> read_rates(std::uint64_t bytes, std::int64_t repeats) override {
    SinkText text;
    std::vector<double> rates(static_cast<std::size_t>(repeats));
    check(device_->read_rates(bytes, repeats, rates.data(), text.sink()), "measuring its read rate", text);
    return rates;
  }
  std::vector<double> multiply_rates(std::int64_t repeats) override {
    SinkText text;
    std::vector<double> rates(static_cast<std::size_t>(repeats));
    check(device_->multiply_rates(repeats, rates.data(), text.sink()), "measuring its rate of products", text);
    return rates;
  }

  void embed(const abi::WeightView& table, const std::int32_t* ids, const std::int32_t* previous, std::int64_t tokens,
             float scale, float* out) override {
    SinkText text;
    check(device_->embed(table, ids, previous, tokens, scale, out, text.sink()), "embed", text);
  }
  void rotary(const std::int32_t* positions, std::int64_t tokens, const float* inverse_frequency,
              const RotaryAngles& angles) override {
    SinkText text;
    check(device_->rotary(positions, tokens, inverse_frequency, angles, text.sink()), "rotary", text);
  }
  void rms_norm(const float* in, const float* weight, float epsilon, std::int64_t tokens, std::int64_t width,
                void* out) override {
    SinkText text;
    check(device_->rms_norm(in, weight, epsilon, tokens, width, out, text.sink()), "rms_norm", text);
  }
  void residual_norm(const ResidualInput& input) override {
    SinkText text;
    check(device_->residual_norm(input, text.sink()), "residual_norm", text);
  }
  void prepare_attention(const AttentionInput& input) override {
    SinkText text;
    check(device_->prepare_attention(input, text.sink()), "prepare_attention", text);
  }
  void gelu_gate(const void* gate_up, std::int64_t tokens, std::int64_t width, void* out) override {
    SinkText text;
    check(device_->gelu_gate(gate_up, tokens, width, out, text.sink()), "gelu_gate", text);
  }
  void gather_rows(const float* in, const std::int32_t* rows, std::int64_t count, std::int64_t width,
                   float* out) override {
    SinkText text;
    check(device_->gather_rows(in, rows, count, width, out, text.sink()), "gather_rows", text);
  }
  void soft_cap(float* values, std::int64_t count, float cap) override {
    SinkText text;
    check(device_->soft_cap(values, count, cap, text.sink()), "soft_cap", text);
  }
  void argmax(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap, std::int32_t* ids) override {
    SinkText text;
    check(device_->argmax(logits, rows, vocabulary, cap, ids, text.sink()), "argmax", text);
  }
  void sample(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap, const RowSampling* how,
              std::int32_t* ids) override {
    SinkText text;
    check(device_->sample(logits, rows, vocabulary, cap, how, ids, text.sink()), "sample", text);
  }

 private:
  cuda::DeviceFacts facts() const {
    cuda::DeviceFacts facts{};
    SinkText text;
    check(device_->facts(&facts, text.sink()), "asking the device", text);
    return facts;
  }

  void count(void* data, std::uint64_t bytes, const char* tag) {
    const auto same = [&](const MemoryAccount& account) { return account.tag == tag; };
    auto found = std::find_if(accounts_.begin(), accounts_.end(), same);
    if (found == accounts_.end()) found = accounts_.insert(accounts_.end(), {tag, 0, 0});
    found->bytes += bytes;
    found->peak_bytes = std::max(found->peak_bytes, found->bytes);
    tags_[data] = static_cast<std::size_t>(found - accounts_.begin());
  }

  DeviceApi* device_;
  std::vector<MemoryAccount> accounts_;
  std::map<void*, std::size_t> tags_;  // allocation -> account
  std::unique_ptr<cuda::RecordedSteps> steps_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend() {
  return std::make_unique<CudaBackend>(open_device());
}

}  // namespace facet
