#include "matrices.h"

#include <dlfcn.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

#include "../../linear/bench_host.h"

namespace facet::bench {

namespace {

// Every processor of the machine packs.
BenchHost& bench_host() {
  static BenchHost host(std::max(1u, std::thread::hardware_concurrency()));
  return host;
}

}  // namespace

CudaPlugin::CudaPlugin(const std::string& name, const std::map<std::string, std::int64_t>& options) : name_(name) {
  const char* folder = std::getenv("FACET_BENCH_PLUGINS");
  const std::string path = std::string(folder != nullptr ? folder : FACET_PLUGIN_DIR) + "/linear_" + name + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<abi::EntryFunction>(dlsym(library, abi::kEntrySymbol));
  if (entry == nullptr) throw std::runtime_error(dlerror());
  descriptor_ = entry();
  std::vector<abi::OptionValue> values;
  std::size_t known = 0;
  for (std::uint32_t i = 0; i < descriptor_->option_count; ++i) {
    const abi::OptionSpec& spec = descriptor_->options[i];
    const auto given = options.find(spec.name);
    if (given != options.end()) ++known;
    values.push_back({sizeof(abi::OptionValue), spec.type,
                      given != options.end() ? given->second : spec.default_integer, spec.default_real,
                      spec.default_text});
  }
  if (known != options.size()) throw std::runtime_error("an option that " + name + " does not have");
  const abi::Options all{sizeof(abi::Options), descriptor_->option_count, values.data()};
  std::string error;
  void* instance = nullptr;
  require_ok(descriptor_->create(&bench_host().table(), &all, &instance, text_sink(error)), error);
  linear_ = static_cast<abi::Linear*>(instance);
}

CudaPlugin::~CudaPlugin() {
  descriptor_->destroy(linear_);
}

HostWeights::HostWeights(const Shape& shape, abi::WeightFormat format) {
  constexpr std::int64_t kGroup = 128;
  const bool int4 = format == abi::WeightFormat::int4;
  const std::int64_t row_bytes = int4 ? shape.in_features / 2 : shape.in_features * 2;
  values_.resize(static_cast<std::size_t>(shape.out_features * row_bytes / 8));
  std::mt19937_64 random(7);
  for (std::uint64_t& value : values_) value = random();
  if (int4) {  // codes of a bell shape around 8, spread 3
    constexpr std::uint8_t kCodes[16] = {2, 4, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 12, 14};
    auto* bytes = reinterpret_cast<std::uint8_t*>(values_.data());
    for (std::size_t i = 0; i < values_.size() * 8; ++i)
      bytes[i] = static_cast<std::uint8_t>(kCodes[bytes[i] & 15] | kCodes[bytes[i] >> 4] << 4);
  }
  const double spread = 1.0 / std::sqrt(static_cast<double>(shape.in_features));
  if (int4) {
    scales_.resize(static_cast<std::size_t>(shape.out_features * (shape.in_features / kGroup)));
    // Scales keep a bf16 mantissa.
    for (float& scale : scales_) {
      const double wanted = spread / 3.0 * (0.5 + static_cast<double>(random() % 1024) / 1024.0);
      std::uint32_t bits;
      scale = static_cast<float>(wanted);
      std::memcpy(&bits, &scale, 4);
      bits &= 0xffff0000u;
      std::memcpy(&scale, &bits, 4);
    }
  } else {
    // Random mantissas and signs under one exponent: magnitudes of spread .. 2 spread.
    const int exponent = 127 + static_cast<int>(std::floor(std::log2(spread)));
    const std::uint64_t sign_mantissa = 0x807f807f807f807full;
    const std::uint64_t high = static_cast<std::uint64_t>(exponent) << 7;
    const std::uint64_t fixed = high | high << 16 | high << 32 | high << 48;
    for (std::uint64_t& value : values_) value = (value & sign_mantissa) | fixed;
  }
  view_.size = sizeof view_;
  view_.format = format;
  view_.out_features = shape.out_features;
  view_.in_features = shape.in_features;
  view_.group_size = int4 ? kGroup : 0;
  view_.values = values_.data();
  view_.row_bytes = row_bytes;
  view_.scales = int4 ? scales_.data() : nullptr;
}

Matrices::Matrices(const CudaPlugin& plugin, const Shape& shape, abi::WeightFormat format, std::int64_t max_rows,
                   abi::DType output, std::uint32_t fusions, int copies)
    : plugin_(plugin) {
  abi::LinearProblem problem{};
  problem.size = sizeof problem;
  problem.device = abi::Device::cuda;
  problem.weight = format;
  problem.role = shape.role;
  problem.out_features = shape.out_features;
  problem.in_features = shape.in_features;
  problem.group_size = format == abi::WeightFormat::int4 ? 128 : 0;
  problem.symmetric = 1;
  problem.input = abi::DType::bf16;
  problem.output = output;
  problem.min_rows = 1;
  problem.max_rows = max_rows;
  problem.fusions = fusions;
  std::string error;
  require_ok(plugin.linear().plan(problem, &plan_, text_sink(error)), error);
  const HostWeights weights(shape, format);
  for (int copy = 0; copy < copies; ++copy) {
    packed_.emplace_back(plan_.packed_bytes);
    if (copy > 0) {
      require(cudaMemcpy(packed_[static_cast<std::size_t>(copy)].data(), packed_[0].data(), plan_.packed_bytes,
                         cudaMemcpyDeviceToDevice),
              "cudaMemcpy");
      continue;
    }
    const auto start = std::chrono::steady_clock::now();
    require_ok(
        plugin.linear().pack(plan_, &weights.view(), 1, {packed_[0].data(), plan_.packed_bytes}, text_sink(error)),
        error);
    pack_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  require(cudaDeviceSynchronize(), "pack");
}

Matrices::~Matrices() {
  plugin_.linear().release(&plan_);
}

void Matrices::run(int copy, abi::LinearArgs args, const DeviceMemory& workspace, cudaStream_t stream) const {
  args.size = sizeof args;
  args.stream = {abi::Device::cuda, 0, stream};
  args.packed = packed_[static_cast<std::size_t>(copy)].data();
  args.workspace = {workspace.data(), workspace.bytes()};
  std::string error;
  require_ok(plugin_.linear().run(plan_, args, text_sink(error)), error);
}

}  // namespace facet::bench
