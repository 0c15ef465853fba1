#include "gemma4/step_parts.h"

#include <algorithm>

#include "facet/sdk/kv_rows.h"

namespace facet::gemma4 {
namespace {

class Costs {
 public:
  Costs(const ModelPlan& plan, const StepWork& work) : plan_(plan), work_(work), costs_(count()) {}

  std::vector<PartCost> all() {
    const ModelConfig& model = plan_.facts().model;
    const auto tokens = static_cast<double>(work_.sequences * work_.new_tokens);
    at(StepPart::inputs).bytes = tokens * static_cast<double>(model.hidden) * (activation_bytes() + sizeof(float));
    const std::int64_t rows = work_.sequences * work_.new_tokens / work_.passes;
    for (std::size_t i = 0; i < plan_.layers().size(); ++i) {
      const bool sliding = model.layers[i].sliding;
      const LayerPlan& layer = plan_.layers()[i];
      add(sliding ? StepPart::sliding_qkv : StepPart::global_qkv, layer.qkv, rows, tokens);
      add_attention(sliding ? StepPart::sliding_attention : StepPart::global_attention, i);
      add(sliding ? StepPart::sliding_output : StepPart::global_output, layer.output, rows, tokens);
      add(StepPart::gate_up, layer.gate_up, rows, tokens);
      add(StepPart::down, layer.down, rows, tokens);
    }
    add(StepPart::head, plan_.head(), work_.sequences, static_cast<double>(work_.sequences));
    return std::move(costs_);
  }

 private:
  static std::size_t count() { return static_cast<std::size_t>(StepPart::count); }
  PartCost& at(StepPart part) { return costs_[static_cast<std::size_t>(part)]; }
  double activation_bytes() const { return static_cast<double>(sdk::element_bytes(plan_.device().activation_type())); }

  void add(StepPart part, const LinearGroup& group, std::int64_t rows, double tokens) {
    for (const LinearModule& module : group.modules()) {
      const auto in = static_cast<double>(module.in_features()), out = static_cast<double>(module.out_features());
      at(part).bytes += static_cast<double>(weight_bytes(module, rows)) * static_cast<double>(work_.passes) +
                        tokens * (in + out) * activation_bytes();
      at(part).operations += 2 * tokens * in * out;
    }
  }

  void add_attention(StepPart part, std::size_t index) {
    const LayerConfig& layer = plan_.facts().model.layers[index];
    const auto heads = static_cast<double>(plan_.facts().model.query_heads);
    const auto sequences = static_cast<double>(work_.sequences);
    const auto tokens = sequences * static_cast<double>(work_.new_tokens);
    const auto dim = static_cast<double>(layer.head_dim), kv_heads = static_cast<double>(layer.kv_heads);
    const std::int64_t length = work_.context + work_.new_tokens;
    const std::int64_t seen = layer.window > 0 ? std::min(length, layer.window - 1 + work_.new_tokens) : length;
    const KvGroup& group = group_of(static_cast<std::int32_t>(index));
    const abi::KvLayout& layout = group.plan.layout;
    const auto width = static_cast<double>(sdk::key_value_width(layer.head_dim, group.key_channels));
    const double row = kv_heads * (width * static_cast<double>(sdk::element_bytes(layout.element)) +
                                   (layout.scales == abi::KvScales::none ? 0.0 : 2 * sizeof(float)));
    at(part).bytes += sequences * static_cast<double>(seen) * row + 2 * tokens * heads * dim * activation_bytes();
    at(part).operations += 4 * sequences * visible_pairs(layer.window) * heads * dim;
  }

  const KvGroup& group_of(std::int32_t layer) const {
    const auto& groups = plan_.kv().groups();
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const KvGroup& group) {
      return std::find(group.spec.layers.begin(), group.spec.layers.end(), layer) != group.spec.layers.end();
    });
    return *found;
  }

  // Pairs of a new token and a row that it sees, of one sequence.
  double visible_pairs(std::int64_t window) const {
    const auto pairs_below = [&](std::int64_t length) {  // of the tokens [0, length)
      const std::int64_t growing = window > 0 ? std::min(length, window) : length;
      return static_cast<double>(growing) * static_cast<double>(growing + 1) / 2 +
             static_cast<double>(length - growing) * static_cast<double>(window);
    };
    return pairs_below(work_.context + work_.new_tokens) - pairs_below(work_.context);
  }

  const ModelPlan& plan_;
  const StepWork& work_;
  std::vector<PartCost> costs_;
};

}  // namespace

const char* part_name(StepPart part) {
  constexpr const char* kNames[] = {"embedding and angles",   "q/k/v, sliding layers", "attention, sliding layers",
                                    "output, sliding layers", "q/k/v, global layers",  "attention, global layers",
                                    "output, global layers",  "gate and up",           "down",
                                    "head and choice"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(StepPart::count));
  return kNames[static_cast<std::size_t>(part)];
}

std::vector<PartCost> part_costs(const ModelPlan& plan, const StepWork& work) {
  return Costs(plan, work).all();
}

std::uint64_t weight_bytes(const LinearModule& module, std::int64_t rows) {
  const auto& choices = module.choices();
  const auto served =
      std::find_if(choices.begin(), choices.end(), [&](const LinearChoice& choice) { return rows <= choice.max_rows; });
  if (served != choices.end() && served->plan.packed_bytes > 0) return served->plan.packed_bytes;
  std::uint64_t bytes = 0;
  for (const LinearSpec::Part& part : module.parts()) {
    bytes += part.format.value_bytes(part.out_features, module.in_features()) +
             part.format.side_bytes(part.out_features, module.in_features());
  }
  return bytes;
}

}  // namespace facet::gemma4
