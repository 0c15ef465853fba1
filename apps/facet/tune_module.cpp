#include "tune_module.h"

#include <algorithm>
#include <chrono>

#include "facet/sdk/kv_rows.h"
#include "facet/sdk/numeric.h"

namespace facet::cli {
namespace {

// "layers.3.mlp.{gate_proj,up_proj}" is "layers.*.mlp.*": one pattern for all parts, as parts under different rules
// are not stacked.
std::string pattern_of(const LinearSpec& spec) {
  std::string name = spec.parts.front().name;
  if (spec.layer >= 0) {
    const std::string number = fmt::format(".{}.", spec.layer);
    const std::size_t at = name.find(number);
    if (at != std::string::npos) name.replace(at, number.size(), ".*.");
  }
  return spec.parts.size() == 1 ? name : name.substr(0, name.rfind('.') + 1) + "*";
}

}  // namespace

std::vector<TunedKind> tuned_kinds(const std::vector<LinearSpec>& specs) {
  std::vector<TunedKind> kinds;
  for (const LinearSpec& spec : specs) {
    const std::string layers = pattern_of(spec);
    auto found = std::find_if(kinds.begin(), kinds.end(), [&](const TunedKind& kind) { return kind.layers == layers; });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {layers, {}});
    found->specs.push_back(&spec);
  }
  std::stable_partition(kinds.begin(), kinds.end(), [](const TunedKind& kind) { return kind.layers.back() != '*'; });
  return kinds;
}

TuneBuffers::TuneBuffers(Backend& backend, const std::vector<LinearSpec>& specs) : backend_(backend) {
  std::int64_t in = 0, in_all = 0, out_all = 0;
  for (const LinearSpec& spec : specs) {
    in = std::max(in, spec.in_features);
    in_all = std::max(in_all, spec.in_features * spec.max_rows);
    out_all = std::max(out_all, spec.out_features() * spec.max_rows * (spec.float_output ? 2 : 1));
  }
  const abi::DType type = backend.activation_type();
  hidden_ = filled(in_all, abi::DType::f32);
  hidden_out_ = filled(in_all, abi::DType::f32);
  norm_ = filled(in, abi::DType::f32);
  update_ = filled(in_all, type);
  normed_ = filled(in_all, type);
  wide_ = filled(out_all, type);
  output_ = filled(out_all, type);
}

DeviceBuffer TuneBuffers::filled(std::int64_t count, abi::DType type) {
  constexpr std::int64_t kPiece = 1 << 20;
  const auto element = static_cast<std::int64_t>(sdk::element_bytes(type));
  std::vector<float> floats(static_cast<std::size_t>(std::min(count, kPiece)));
  std::uniform_real_distribution<float> values(-1.0f, 1.0f);
  for (float& value : floats) value = values(random_);
  std::vector<std::uint16_t> halves(floats.size());
  std::transform(floats.begin(), floats.end(), halves.begin(), sdk::float_to_bf16);
  const void* source = type == abi::DType::f32 ? static_cast<const void*>(floats.data()) : halves.data();
  DeviceBuffer buffer = backend_.allocate(static_cast<std::uint64_t>(count * element), 64, kActivationsTag);
  for (std::int64_t at = 0; at < count; at += kPiece)
    backend_.upload(buffer.as<char>() + at * element, source,
                    static_cast<std::uint64_t>(std::min(kPiece, count - at) * element));
  return buffer;
}

void TuneBuffers::run(LinearGroup& group, const LinearSpec& spec, std::int64_t rows, const Workspace& workspace) {
  ResidualInput input;
  input.hidden = hidden_.as<float>();
  input.update = update_.data();
  input.post_norm = norm_.as<float>();
  input.next_norm = norm_.as<float>();
  input.hidden_out = hidden_out_.as<float>();
  input.normed = normed_.data();
  input.tokens = rows;
  input.width = spec.in_features;
  input.epsilon = 1e-6f;
  if ((spec.fusions & abi::kFuseGeluGate) != 0) {
    group.run_gated(backend_, input, wide_.data(), output_.data(), workspace);
  } else if ((spec.fusions & abi::kFuseResidualNorm) != 0) {
    group.run_normed(backend_, input, output_.data(), workspace);
  } else {
    group.run(backend_, rows, normed_.data(), output_.data(), workspace);
  }
}

TuneArm::TuneArm(Backend& backend, TunedPlugin& plugin, const TunedKind& kind, std::int64_t rows)
    : backend_(backend), kind_(kind), rows_(rows) {
  std::uint64_t bytes = 0;
  for (const LinearSpec* spec : kind.specs) {
    LinearSpec asked = *spec;
    asked.max_rows = rows;
    groups_.push_back(plugin.assembler->plan(asked));
    for (const LinearModule& module : groups_.back().modules()) bytes = std::max(bytes, module.workspace_bytes());
  }
  workspace_ = Workspace(backend, bytes);
}

void TuneArm::load(const LoadWeight& load, WeightStore& store) {
  for (LinearGroup& group : groups_) {
    for (LinearModule& module : group.modules()) module.load(load, store);
  }
}

void TuneArm::run(TuneBuffers& buffers) {
  for (std::size_t i = 0; i < groups_.size(); ++i) buffers.run(groups_[i], *kind_.specs[i], rows_, workspace_);
}

void TuneArm::warm_up(TuneBuffers& buffers) {
  run(buffers);  // not in a recording, where the driver may load no kernel
  measure(buffers);
}

double TuneArm::measure(TuneBuffers& buffers) {
  double nanoseconds = 0;
  if (backend_.device() == abi::Device::cpu) {
    const auto begin = std::chrono::steady_clock::now();
    run(buffers);
    nanoseconds = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
  } else {
    const std::vector<StepTime> steps =
        backend_.time_steps([&] { backend_.run_recorded(this, rows_, [&] { run(buffers); }); });
    nanoseconds = static_cast<double>(steps.front().end_ns - steps.front().start_ns);
  }
  return nanoseconds / 1e3 / static_cast<double>(groups_.size());
}

}  // namespace facet::cli
