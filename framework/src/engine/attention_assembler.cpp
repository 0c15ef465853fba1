#include <algorithm>

#include "facet/engine/attention_module.h"
#include "facet/engine/plugin_choice.h"
#include "facet/sdk/attention.h"
#include "facet/sdk/kv_cache.h"
#include "kv_plan_check.h"

namespace facet {
namespace {

constexpr std::uint32_t kMaxLayouts = 32;

template <typename Interface, typename Problem>
std::vector<abi::KvLayout> layouts_of(const Interface& plugin, const Problem& problem) {
  std::vector<abi::KvLayout> list(kMaxLayouts);
  list.resize(std::min(kMaxLayouts, plugin->layouts(problem, list.data(), kMaxLayouts)));
  return list;
}

bool fits(const abi::KvLayout& offer, const abi::KvLayout& layout) {
  return offer.addressing == layout.addressing && offer.order == layout.order && offer.element == layout.element &&
         offer.scales == layout.scales && (offer.block_rows == 0 || offer.block_rows == layout.block_rows) &&
         (offer.alignment == 0 || layout.alignment % offer.alignment == 0);
}

std::string list_text(const std::vector<abi::KvLayout>& layouts) {
  std::string text;
  for (const abi::KvLayout& layout : layouts) text += fmt::format("\n    {}", sdk::to_string(layout));
  return text.empty() ? "\n    none" : text;
}

KvGroup choose_cache(const Config& config, PluginRegistry& registry, const abi::KvProblem& problem,
                     const KvGroupSpec& spec) {
  const PluginChoice& choice = spec.window > 0 ? config.kv_sliding : config.kv_global;
  KvGroup group;
  group.spec = spec;
  for (const Candidate& candidate : candidates(choice)) {
    auto made = make_plugin<abi::KvCache>(
        config, registry, candidate, resolve_plugin(config, registry, abi::PluginKind::kv_cache, choice, candidate));
    group.cache = std::move(made.instance);
    group.options = std::move(made.options);
    SinkText reasons;
    if (group.cache->supports(problem, reasons.sink()) != 0) return group;
    group.refused.push_back({candidate.name, reasons.text()});
  }
  throw_error(ErrorKind::plugin,
              "{}:{}: {}: no cache policy takes the {} layers ({}); name another plugin or a fallback:{}",
              config.file.string(), choice.line, choice.key_path, spec.name, sdk::to_string(problem),
              refusals_text(group.refused));
}

abi::KvProblem make_kv_problem(const KvGroupSpec& spec, abi::Device device, const KvLimits& limits) {
  abi::KvProblem problem{};
  problem.size = sizeof problem;
  problem.device = device;
  problem.layer_count = static_cast<std::int64_t>(spec.layers.size());
  problem.kv_heads = spec.kv_heads;
  problem.head_dim = spec.head_dim;
  problem.window = spec.window;
  problem.max_sequences = limits.max_sequences;
  problem.max_context = limits.max_context;
  problem.max_chunk = limits.max_chunk;
  problem.max_step_tokens = limits.max_step_tokens;
  return problem;
}

abi::AttentionProblem make_attention_problem(const KvGroupSpec& spec, AttentionShape shape, abi::Device device,
                                             const KvLimits& limits, std::int64_t max_step_tokens) {
  abi::AttentionProblem problem{};
  problem.size = sizeof problem;
  problem.device = device;
  problem.layer = spec.layers.front();
  problem.input = shape.activations;
  problem.output = shape.activations;
  problem.query_heads = shape.query_heads;
  problem.kv_heads = spec.kv_heads;
  problem.head_dim = spec.head_dim;
  problem.window = spec.window;
  problem.scale = shape.scale;
  problem.max_step_tokens = max_step_tokens;
  problem.max_sequences = limits.max_sequences;
  problem.max_context = limits.max_context;
  return problem;
}

// Asks for the fused preparation, then without; leaves in `problem` what was taken.
bool supports(const PluginInstance<abi::Attention>& plugin, abi::AttentionProblem& problem, SinkText& reasons) {
  for (const std::uint32_t fusions : {static_cast<std::uint32_t>(abi::kFusePreparation), 0u}) {
    problem.fusions = fusions;
    reasons = {};
    if (plugin->supports(problem, reasons.sink()) != 0) return true;
  }
  return false;
}

}  // namespace

AttentionAssembly assemble_attention(const Config& config, PluginRegistry& registry, abi::Device device,
                                     const KvGroupSpec& spec, AttentionShape shape, const KvLimits& limits,
                                     std::int64_t max_step_tokens) {
  const abi::KvProblem kv_problem = make_kv_problem(spec, device, limits);
  KvGroup cache = choose_cache(config, registry, kv_problem, spec);
  const std::vector<abi::KvLayout> stored = layouts_of(cache.cache, kv_problem);
  const PluginChoice& choice = spec.window > 0 ? config.attention_sliding : config.attention_global;
  abi::AttentionProblem problem = make_attention_problem(spec, shape, device, limits, max_step_tokens);
  std::vector<Refusal> refused;
  for (const Candidate& candidate : candidates(choice)) {
    auto made = make_plugin<abi::Attention>(
        config, registry, candidate, resolve_plugin(config, registry, abi::PluginKind::attention, choice, candidate));
    auto instance = std::make_shared<AttentionInstance>();
    instance->plugin = std::move(made.instance);
    instance->options = std::move(made.options);
    // Without an instance nothing says what the kernel reads: what the cache likes best is taken for it.
    const std::vector<abi::KvLayout> read = instance->plugin ? layouts_of(instance->plugin, problem) : stored;
    const abi::KvLayout* common = nullptr;
    for (const abi::KvLayout& offer : read) {
      const auto found =
          std::find_if(stored.begin(), stored.end(), [&](const abi::KvLayout& layout) { return fits(offer, layout); });
      if (common == nullptr && found != stored.end()) common = &*found;
    }
    if (common == nullptr) {
      refused.push_back(
          {candidate.name, fmt::format("no common KV layout; the kernel reads:{}\n  the cache policy '{}' stores:{}",
                                       list_text(read), cache.cache.plugin().descriptor->name, list_text(stored))});
      continue;
    }
    problem.layout = *common;
    SinkText reasons;
    if (instance->plugin && !supports(instance->plugin, problem, reasons)) {
      refused.push_back({candidate.name, reasons.text()});
      continue;
    }
    SinkText text;
    check_call(cache.cache->plan(kv_problem, *common, &cache.plan, text.sink()), cache.cache.plugin(),
               fmt::format("planning the {} layers", spec.name).c_str(), text, ErrorKind::plugin);
    check_kv_plan(cache.cache.plugin(), kv_problem, *common, cache.plan);
    abi::AttentionPlan plan{};
    if (instance->plugin) {
      check_call(instance->plugin->plan(problem, &plan, text.sink()), instance->plugin.plugin(),
                 fmt::format("planning the {} layers", spec.name).c_str(), text, ErrorKind::plugin);
    }
    const LoadedPlugin& reader = instance->plugin.plugin();
    auto attention = std::make_unique<AttentionModule>(spec, problem, std::move(instance), plan, std::move(refused));
    // Only now: the module owns the plan and gives it back when this throws.
    check_planned_bytes(reader, "workspace_bytes", plan.workspace_bytes);
    return {std::move(cache), std::move(attention)};
  }
  throw_error(ErrorKind::plugin,
              "{}:{}: {}: no attention plugin takes the {} layers ({}); name another plugin or a fallback:{}",
              config.file.string(), choice.line, choice.key_path, spec.name, sdk::to_string(problem),
              refusals_text(refused));
}

}  // namespace facet
