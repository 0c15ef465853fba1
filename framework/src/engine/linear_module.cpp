#include "facet/engine/linear_module.h"

#include <algorithm>
#include <numeric>

#include "facet/sdk/kv_rows.h"

namespace facet {

std::int64_t LinearSpec::out_features() const {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0},
                         [](std::int64_t sum, const Part& part) { return sum + part.out_features; });
}

std::uint64_t LinearFormat::value_bytes(std::int64_t out_features, std::int64_t in_features) const {
  const std::int64_t bits = format == abi::WeightFormat::bf16 ? 16 : format == abi::WeightFormat::int8 ? 8 : 4;
  // Codes fill whole 32-bit words of a row; bf16 rows have no padding.
  const std::int64_t row = bits == 16 ? 2 * in_features : (in_features * bits + 31) / 32 * 4;
  return static_cast<std::uint64_t>(out_features * row);
}

std::uint64_t LinearFormat::side_bytes(std::int64_t out_features, std::int64_t in_features) const {
  if (format == abi::WeightFormat::bf16) return 0;
  const std::int64_t groups = (in_features + group_size - 1) / group_size;
  return static_cast<std::uint64_t>(out_features * groups * (symmetric ? 4 : 5));
}

LinearModule::LinearModule(std::vector<LinearSpec::Part> parts, std::int64_t in_features, std::int32_t layer,
                           abi::DType output, std::vector<LinearChoice> choices)
    : parts_(std::move(parts)),
      in_features_(in_features),
      layer_(layer),
      output_(output),
      choices_(std::move(choices)) {
  for (const LinearSpec::Part& part : parts_) out_features_ += part.out_features;
}

std::string LinearModule::name() const {
  const std::string& first = parts_.front().name;
  if (parts_.size() == 1) return first;
  const std::size_t dot = first.rfind('.') + 1;
  std::string text = first.substr(0, dot) + "{";
  for (const LinearSpec::Part& part : parts_) text += part.name.substr(dot) + (&part == &parts_.back() ? "}" : ",");
  return text;
}

std::uint64_t LinearModule::workspace_bytes() const {
  std::uint64_t bytes = 0;
  for (const LinearChoice& choice : choices_) bytes = std::max(bytes, choice.plan.workspace_bytes);
  return bytes;
}

std::vector<WeightStore::Key> LinearModule::packed_keys() const {
  std::vector<WeightStore::Key> keys;
  for (const LinearChoice& choice : choices_) {
    if (choice.plan.packed_bytes == 0) continue;
    const LinearFormat& format = parts_.front().format;
    WeightStore::Key key{fmt::format("{} format {} g{} {}", name(), static_cast<int>(format.format), format.group_size,
                                     format.symmetric),
                         choice.plan.layout, choice.plan.packed_bytes};
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
  }
  return keys;
}

bool LinearModule::reads_in_place() const {
  return std::any_of(choices_.begin(), choices_.end(),
                     [](const LinearChoice& choice) { return choice.planned() && choice.plan.packed_bytes == 0; });
}

std::uint64_t LinearModule::owned_bytes() const {
  return std::accumulate(weights_.begin(), weights_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const LinearWeight& weight) { return sum + weight.owned_bytes(); });
}

void LinearModule::load(const LoadWeight& load_weight, WeightStore& store) {
  std::vector<LinearWeight> weights;
  std::vector<abi::WeightView> views;
  const auto views_ready = [&]() -> const std::vector<abi::WeightView>& {
    if (weights.empty()) {
      for (const LinearSpec::Part& part : parts_) weights.push_back(load_weight(part, in_features_));
      for (const LinearWeight& weight : weights) views.push_back(weight.view());
    }
    return views;
  };
  const std::vector<WeightStore::Key> keys = packed_keys();
  for (LinearChoice& choice : choices_) {
    if (choice.plan.packed_bytes == 0) continue;
    const auto key = std::find_if(keys.begin(), keys.end(), [&](const WeightStore::Key& candidate) {
      return candidate.layout == choice.plan.layout && candidate.bytes == choice.plan.packed_bytes;
    });
    choice.packed = store.get(*key, choice.plan.packed_alignment, [&](abi::Memory packed) {
      const std::vector<abi::WeightView>& ready = views_ready();
      SinkText text;
      check_call(choice.instance->plugin->pack(choice.plan, ready.data(), static_cast<std::uint32_t>(ready.size()),
                                               packed, text.sink()),
                 choice.instance->plugin.plugin(), fmt::format("packing {}", name()).c_str(), text, ErrorKind::plugin);
    });
  }
  if (reads_in_place()) {
    views_ready();
    weights_ = std::move(weights);
    views_ = std::move(views);
  }
}

LinearChoice& LinearModule::choice(std::int64_t rows) {
  for (LinearChoice& choice : choices_) {
    if (rows <= choice.max_rows) return choice;
  }
  throw_error(ErrorKind::run, "{}: {} rows are more than the {} it was planned for", name(), rows,
              choices_.back().max_rows);
}

void LinearModule::run(const Backend& backend, std::int64_t rows, const void* input, void* output,
                       std::int64_t output_stride, const Workspace& workspace, const abi::LinearResidual* residual) {
  LinearChoice& choice = this->choice(rows);
  abi::LinearArgs args{};
  args.size = sizeof args;
  args.part_count = static_cast<std::uint32_t>(views_.size());
  args.stream = backend.stream();
  args.rows = rows;
  args.input = input;
  args.input_stride = in_features_;
  args.output = output;
  args.output_stride = output_stride;
  args.packed = choice.packed;
  args.parts = views_.data();
  args.workspace = workspace.memory();
  args.counters = workspace.counters();
  args.residual = residual;
  SinkText text;
  abi::Status status;
  {
    const CountedCall counted(choice.instance->counter);
    status = choice.instance->plugin->run(choice.plan, args, text.sink());
  }
  if (status != abi::Status::ok) {
    check_call(status, choice.instance->plugin.plugin(), fmt::format("running {} on {} rows", name(), rows).c_str(),
               text);
  }
}

// Only a single kernel call that does all parts may fuse: the others would read a stream that is already updated.
std::uint32_t LinearGroup::fusions(std::int64_t rows) {
  return modules_.size() == 1 ? modules_.front().choice(rows).problem.fusions : 0;
}

void LinearGroup::run(const Backend& backend, std::int64_t rows, const void* input, void* output,
                      const Workspace& workspace) {
  std::int64_t stride = 0;
  for (const LinearModule& module : modules_) stride += module.out_features();
  auto* part = static_cast<char*>(output);
  for (LinearModule& module : modules_) {
    module.run(backend, rows, input, part, stride, workspace);
    part += module.out_features() * sdk::element_bytes(module.output_type());
  }
}

void LinearGroup::run_normed(Backend& backend, const ResidualInput& input, void* output, const Workspace& workspace) {
  if ((fusions(input.tokens) & abi::kFuseResidualNorm) == 0) {
    backend.residual_norm(input);
    run(backend, input.tokens, input.normed, output, workspace);
    return;
  }
  LinearModule& module = modules_.front();
  abi::LinearResidual residual{};
  residual.size = sizeof residual;
  residual.epsilon = input.epsilon;
  residual.scale = input.scale;
  residual.hidden = input.hidden;
  residual.update = input.update;
  residual.post_norm = input.post_norm;
  residual.next_norm = input.next_norm;
  residual.hidden_out = input.hidden_out;
  const bool gated = (fusions(input.tokens) & abi::kFuseGeluGate) != 0;
  module.run(backend, input.tokens, nullptr, output, gated ? module.out_features() / 2 : module.out_features(),
             workspace, &residual);
}

void LinearGroup::run_gated(Backend& backend, const ResidualInput& input, void* wide, void* output,
                            const Workspace& workspace) {
  const std::uint32_t fused = fusions(input.tokens);
  if ((fused & abi::kFuseGeluGate) == 0) {
    std::int64_t width = 0;
    for (const LinearModule& module : modules_) width += module.out_features();
    run_normed(backend, input, wide, workspace);
    backend.gelu_gate(wide, input.tokens, width / 2, output);
  } else if ((fused & abi::kFuseResidualNorm) != 0) {
    run_normed(backend, input, output, workspace);
  } else {
    backend.residual_norm(input);
    LinearModule& module = modules_.front();
    module.run(backend, input.tokens, input.normed, output, module.out_features() / 2, workspace);
  }
}

}  // namespace facet
