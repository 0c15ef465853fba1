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

// Values of key_channels to try, best first.
std::vector<std::int64_t> forms_of(const Config& config, const KvGroupSpec& spec) {
  if (spec.turned_channels == 0 || config.engine.kv_form == "full") return {0};
  if (config.engine.kv_form == "shared") return {spec.turned_channels};
  return {spec.turned_channels, 0};
}

// A cache and a kernel in one form of the cache; fills what they agree on, or says why they do not.
struct Agreement {
  abi::KvProblem cache;
  abi::AttentionProblem attention;
  std::string refusal;

  bool reach(const KvGroup& group, const PluginInstance<abi::Attention>& kernel, std::int64_t key_channels) {
    cache.key_channels = attention.key_channels = key_channels;
    SinkText reasons;
    if (key_channels > 0 && group.cache->supports(cache, reasons.sink()) == 0) {
      refusal = fmt::format("the cache policy '{}': {}", group.cache.plugin().descriptor->name, reasons.text());
      return false;
    }
    const std::vector<abi::KvLayout> stored = layouts_of(group.cache, cache);
    attention.layout = {};
    attention.fusions = 0;
    // Without an instance nothing says what the kernel reads: what the cache likes best is taken for it.
    const std::vector<abi::KvLayout> read = kernel ? layouts_of(kernel, attention) : stored;
    const abi::KvLayout* common = nullptr;
    for (const abi::KvLayout& offer : read) {
      const auto found =
          std::find_if(stored.begin(), stored.end(), [&](const abi::KvLayout& layout) { return fits(offer, layout); });
      if (common == nullptr && found != stored.end()) common = &*found;
    }
    if (common == nullptr) {
      refusal = fmt::format("no common KV layout; the kernel reads:{}\n  the cache policy '{}' stores:{}",
                            list_text(read), group.cache.plugin().descriptor->name, list_text(stored));
      return false;
    }
    attention.layout = *common;
    if (!kernel || supports(kernel, attention, reasons)) return true;
    refusal = reasons.text();
    return false;
  }
};

// Both plans of what was agreed.
AttentionAssembly plan_group(KvGroup cache, std::shared_ptr<AttentionInstance> instance, const Agreement& agreed,
                             std::vector<Refusal> refused, std::vector<Refusal> form_refused) {
  const KvGroupSpec spec = cache.spec;
  SinkText text;
  const std::string what = fmt::format("planning the {} layers", spec.name);
  cache.key_channels = agreed.cache.key_channels;
  check_call(cache.cache->plan(agreed.cache, agreed.attention.layout, &cache.plan, text.sink()), cache.cache.plugin(),
             what.c_str(), text, ErrorKind::plugin);
  check_kv_plan(cache.cache.plugin(), agreed.cache, agreed.attention.layout, cache.plan);
  abi::AttentionPlan plan{};
  if (instance->plugin) {
    check_call(instance->plugin->plan(agreed.attention, &plan, text.sink()), instance->plugin.plugin(), what.c_str(),
               text, ErrorKind::plugin);
  }
  const LoadedPlugin& reader = instance->plugin.plugin();
  auto attention = std::make_unique<AttentionModule>(spec, agreed.attention, std::move(instance), plan,
                                                     std::move(refused), std::move(form_refused));
  // Only now: the module owns the plan and gives it back when this throws.
  check_planned_bytes(reader, "workspace_bytes", plan.workspace_bytes);
  return {std::move(cache), std::move(attention)};
}

}  // namespace

AttentionAssembly assemble_attention(const Config& config, PluginRegistry& registry, abi::Device device,
                                     const KvGroupSpec& spec, AttentionShape shape, const KvLimits& limits,
                                     std::int64_t max_step_tokens) {
  Agreement agreed{
      make_kv_problem(spec, device, limits), make_attention_problem(spec, shape, device, limits, max_step_tokens), {}};
  KvGroup cache = choose_cache(config, registry, agreed.cache, spec);
  const PluginChoice& choice = spec.window > 0 ? config.attention_sliding : config.attention_global;
  const std::vector<std::int64_t> forms = forms_of(config, spec);
  std::vector<Refusal> refused, form_refused;
  if (spec.turned_channels > 0 && forms.front() == 0) form_refused.push_back({"engine.kv_form", "it is 'full'"});
  for (const Candidate& candidate : candidates(choice)) {
    auto made = make_plugin<abi::Attention>(
        config, registry, candidate, resolve_plugin(config, registry, abi::PluginKind::attention, choice, candidate));
    auto instance = std::make_shared<AttentionInstance>();
    instance->plugin = std::move(made.instance);
    instance->options = std::move(made.options);
    for (const std::int64_t form : forms) {
      const bool last = form == forms.back();
      if (!last && !instance->plugin) {
        form_refused.push_back({candidate.name, "not asked: it plans only on its device"});
        continue;
      }
      if (agreed.reach(cache, instance->plugin, form))
        return plan_group(std::move(cache), std::move(instance), agreed, std::move(refused), std::move(form_refused));
      (last ? refused : form_refused).push_back({candidate.name, agreed.refusal});
    }
  }
  const bool only_shared = forms.front() != 0 && forms.size() == 1;
  throw_error(ErrorKind::plugin,
              "{}:{}: {}: no attention plugin takes the {} layers ({}); name another plugin or a fallback{}:{}",
              config.file.string(), choice.line, choice.key_path, spec.name, sdk::to_string(agreed.attention),
              only_shared ? ", or take whole keys (engine.kv_form is 'shared'; 'auto' would)" : "",
              refusals_text(refused));
}

}  // namespace facet
