#include "ab_activation.h"

#include <algorithm>
#include <map>
#include <set>

namespace facet::cli {
namespace {

// Two uses with the same text are the same code with the same options.
std::string identity(const std::string& name, const std::string& options, std::uint64_t file_hash) {
  return fmt::format("{} {:016x} {}", name, file_hash, options);
}

std::string identity(const PluginUse& use) {
  return identity(use.name, use.options, use.file_hash);
}

std::string identity(const LinearInstance& instance) {
  const LoadedPlugin& plugin = instance.plugin.plugin();
  return identity(plugin.descriptor->name, instance.options, plugin.file_hash);
}

std::string shown(const PluginUse& use) {
  return use.options.empty() ? use.name : fmt::format("{} ({})", use.name, use.options);
}

// Row counts [first, last] of one weight served by one plugin.
struct Span {
  std::int64_t first, last;
  std::string plugin;  // identity
};

// Keyed by the weight, because variants may stack weights into calls in different ways.
std::map<std::string, std::vector<Span>> linear_spans(const AbVariant& variant) {
  std::map<std::string, std::vector<Span>> spans;
  for (const LinearGroup* group : variant.pipeline->plan().linears()) {
    for (const LinearModule& module : group->modules()) {
      for (const LinearSpec::Part& part : module.parts()) {
        for (const LinearChoice& choice : module.choices())
          spans[part.name].push_back({choice.min_rows, choice.max_rows, identity(*choice.instance)});
      }
    }
  }
  return spans;
}

// Weights and row counts that a linear plugin serves.
struct Reach {
  std::set<std::string> parts;
  std::int64_t first = INT64_MAX, last = 0;

  void add(const std::string& part, std::int64_t from, std::int64_t to) {
    parts.insert(part);
    first = std::min(first, from);
    last = std::max(last, to);
  }
  std::string text() const {
    if (parts.empty()) return "serves no weight: no rule that names it matches, or it refused them";
    return fmt::format("serves {}{}, {} to {} rows", *parts.begin(),
                       parts.size() > 1 ? fmt::format(" and {} more", parts.size() - 1) : "", first, last);
  }
};

// By plugin: everything it serves.
std::map<std::string, Reach> linear_reach(const AbVariant& variant) {
  std::map<std::string, Reach> reach;
  for (const auto& [part, spans] : linear_spans(variant)) {
    for (const Span& span : spans) reach[span.plugin].add(part, span.first, span.last);
  }
  return reach;
}

// By plugin: what it serves in `own` and another plugin in `other`.
std::map<std::string, Reach> linear_changes(const AbVariant& own, const AbVariant& other) {
  std::map<std::string, Reach> reach;
  const auto other_spans = linear_spans(other);
  for (const auto& [part, spans] : linear_spans(own)) {
    const auto found = other_spans.find(part);
    if (found == other_spans.end()) continue;
    for (const Span& span : spans) {
      for (const Span& theirs : found->second) {
        const std::int64_t first = std::max(span.first, theirs.first), last = std::min(span.last, theirs.last);
        if (first <= last && span.plugin != theirs.plugin) reach[span.plugin].add(part, first, last);
      }
    }
  }
  return reach;
}

bool has_use(const AbVariant& variant, const PluginUse& wanted) {
  return std::any_of(variant.uses.begin(), variant.uses.end(), [&](const PluginUse& use) {
    return use.place == wanted.place && identity(use) == identity(wanted);
  });
}

void add_switches(const AbVariant& own, const AbVariant& other, std::vector<AbSwitch>& list) {
  std::map<std::string, Reach> all = linear_reach(own), changes = linear_changes(own, other);
  for (const PluginUse& use : own.uses) {
    const bool linear = use.place == "linear", alone = !has_use(other, use);
    if (!alone && !(linear && changes.count(identity(use)) != 0)) continue;
    std::string where;
    if (linear) where = (alone ? all : changes)[identity(use)].text();
    list.push_back({own.name, use.place, use.name, use.options, std::move(where), use.calls});
  }
}

// Plugins of a place, in the order in which they were bound.
std::string place_text(const AbVariant& variant, const std::string& place) {
  std::string text;
  for (const PluginUse& use : variant.uses) {
    if (use.place != place) continue;
    if (!text.empty()) text += ", ";
    text += shown(use);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<AbSwitch> switches(const AbVariant& a, const AbVariant& b) {
  std::vector<AbSwitch> list;
  add_switches(a, b, list);
  add_switches(b, a, list);
  return list;
}

std::vector<AbDifference> differences(const AbVariant& a, const AbVariant& b) {
  std::vector<AbDifference> list;
  const Config &left = a.pipeline->config(), &right = b.pipeline->config();
  const auto compare = [&](const char* key, const auto& x, const auto& y) {
    if (x != y) list.push_back({key, fmt::format("{}", x), fmt::format("{}", y)});
  };
  if (left.model.real_path() != right.model.real_path())
    compare("model.path", left.model.path.string(), right.model.path.string());
  compare("model.head", left.model.head, right.model.head);
  compare("engine.device", left.engine.device, right.engine.device);
  compare("engine.max_sequences", left.engine.max_sequences, right.engine.max_sequences);
  compare("engine.max_context", left.engine.max_context, right.engine.max_context);
  compare("engine.max_step_tokens", left.engine.max_step_tokens, right.engine.max_step_tokens);
  compare("engine.prefill_chunk", left.engine.prefill_chunk, right.engine.prefill_chunk);
  compare("engine.threads", left.engine.threads, right.engine.threads);
  compare("engine.cpu_isa", left.engine.cpu_isa, right.engine.cpu_isa);
  compare("engine.kv_form", left.engine.kv_form, right.engine.kv_form);
  std::set<std::string> seen;
  for (const AbSwitch& entry : switches(a, b)) {
    if (seen.insert(entry.place).second)
      list.push_back({entry.place, place_text(a, entry.place), place_text(b, entry.place)});
  }
  return list;
}

void require_activation(const std::vector<AbVariant>& variants) {
  Problems problems;
  std::set<std::string> named;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    for (std::size_t j = i + 1; j < variants.size(); ++j) {
      for (const AbSwitch& entry : switches(variants[i], variants[j])) {
        if (entry.calls > 0 || !named.insert(entry.variant + entry.place + entry.plugin + entry.options).second)
          continue;
        problems.add("variant {}: {}: plugin '{}'{} was never called in the measured rounds{}", entry.variant,
                     entry.place, entry.plugin, entry.options.empty() ? "" : fmt::format(" ({})", entry.options),
                     entry.where.empty() ? "" : fmt::format("; it {}", entry.where));
      }
    }
  }
  problems.throw_if_any(ErrorKind::run,
                        "the comparison would not show what was switched; use requests that reach the plugin (longer "
                        "prompts, more requests at once) or change the rule:");
}

}  // namespace facet::cli
