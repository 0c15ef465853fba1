#include <algorithm>
#include <iterator>
#include <set>

#include "facet/base/text.h"
#include "facet/engine/linear_module.h"
#include "facet/sdk/linear.h"
#include "kv_plan_check.h"

namespace facet {

// Rows [min, max] of a module and the rule that decides for them.
struct LinearAssembler::Interval {
  std::int64_t min_rows;
  std::int64_t max_rows;
  const LinearRule* rule;
  bool operator==(const Interval&) const = default;
};

namespace {

bool rule_covers(const LinearRule& rule, const std::string& name, std::int64_t rows) {
  return glob_match(rule.layers, name) && rows >= rule.min_rows && (rule.max_rows == 0 || rows <= rule.max_rows);
}

abi::LinearProblem make_problem(const std::vector<LinearSpec::Part>& parts, const LinearSpec& spec, abi::Device device,
                                abi::DType activations) {
  abi::LinearProblem problem{};
  problem.size = sizeof problem;
  problem.device = device;
  problem.weight = parts.front().format.format;
  problem.role = parts.size() > 1 ? spec.stacked_role : parts.front().role;
  for (const LinearSpec::Part& part : parts) problem.out_features += part.out_features;
  problem.in_features = spec.in_features;
  problem.group_size = parts.front().format.group_size;
  problem.symmetric = parts.front().format.symmetric ? 1 : 0;
  problem.input = activations;
  problem.output = spec.float_output ? abi::DType::f32 : activations;
  problem.fusions = parts.size() == spec.parts.size() ? spec.fusions : 0;
  problem.layer = spec.layer;
  return problem;
}

// What to ask for, most first: everything, each alone, nothing.
std::vector<std::uint32_t> fusion_attempts(std::uint32_t wanted) {
  std::vector<std::uint32_t> attempts = {wanted};
  for (const std::uint32_t one : {abi::kFuseResidualNorm, abi::kFuseGeluGate}) {
    if ((wanted & one) != 0 && wanted != one) attempts.push_back(one);
  }
  if (wanted != 0) attempts.push_back(0);
  return attempts;
}

// How `asked` serves all rows of the problem: the number of the first attempt that it takes; none of them: their
// number. `reasons` are those of the last.
std::size_t first_taken(const LinearInstance& asked, abi::LinearProblem problem,
                        const std::vector<std::uint32_t>& attempts, SinkText& reasons) {
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    problem.fusions = attempts[i];
    reasons = {};
    if (asked.plugin->supports(problem, reasons.sink()) != 0) return i;
  }
  return attempts.size();
}

// The most rows from min_rows on that `asked` takes with the problem's fusions; 0: not even one more.
std::int64_t most_rows(const LinearInstance& asked, abi::LinearProblem problem) {
  const auto takes = [&](std::int64_t rows) {
    problem.max_rows = rows;
    SinkText reasons;
    return asked.plugin->supports(problem, reasons.sink()) != 0;
  };
  std::int64_t refused = problem.max_rows;
  std::int64_t taken = problem.min_rows;
  if (taken >= refused || !takes(taken)) return 0;
  while (taken + 1 < refused) {
    const std::int64_t middle = taken + (refused - taken) / 2;
    (takes(middle) ? taken : refused) = middle;
  }
  return taken;
}

LinearChoice planned(const abi::LinearProblem& problem, std::shared_ptr<LinearInstance> asked,
                     const std::string& name) {
  LinearChoice choice;
  choice.problem = problem;
  SinkText text;
  check_call(asked->plugin->plan(problem, &choice.plan, text.sink()), asked->plugin.plugin(),
             fmt::format("planning {}", name).c_str(), text, ErrorKind::plugin);
  choice.plan_owner = std::shared_ptr<void>(choice.plan.handle, [asked](void* handle) {
    abi::LinearPlan plan{};
    plan.handle = handle;
    asked->plugin->release(&plan);
  });
  check_planned_bytes(asked->plugin.plugin(), "workspace_bytes", choice.plan.workspace_bytes);
  check_planned_bytes(asked->plugin.plugin(), "packed_bytes", choice.plan.packed_bytes);
  choice.instance = std::move(asked);
  return choice;
}

}  // namespace

std::vector<LinearAssembler::Interval> LinearAssembler::intervals(const std::string& name,
                                                                  std::int64_t max_rows) const {
  // A decision can change only where some rule begins or ends.
  std::set<std::int64_t> starts = {1};
  for (const LinearRule& rule : config_.linear) {
    if (rule.min_rows <= max_rows) starts.insert(rule.min_rows);
    if (rule.max_rows > 0 && rule.max_rows < max_rows) starts.insert(rule.max_rows + 1);
  }
  std::vector<Interval> result;
  for (const std::int64_t rows : starts) {
    const auto rule = std::find_if(config_.linear.begin(), config_.linear.end(),
                                   [&](const LinearRule& candidate) { return rule_covers(candidate, name, rows); });
    if (rule == config_.linear.end()) {
      throw_error(ErrorKind::config, "no [linear] rule covers '{}' with {} rows; give [linear] a default plugin", name,
                  rows);
    }
    if (!result.empty() && result.back().rule == &*rule) continue;
    if (!result.empty()) result.back().max_rows = rows - 1;
    result.push_back({rows, max_rows, &*rule});
  }
  return result;
}

std::shared_ptr<LinearInstance> LinearAssembler::instance(const PluginChoice& choice, const Candidate& candidate) {
  const ResolvedPlugin resolved = resolve_plugin(config_, registry_, abi::PluginKind::linear, choice, candidate);
  const std::string options = resolved.options.to_string();
  for (const auto& known : instances_) {
    if (&known->plugin.plugin() == &resolved.plugin && known->options == options) return known;
  }
  auto made = std::make_shared<LinearInstance>();
  made->plugin = registry_.create<abi::Linear>(resolved.plugin, resolved.options);
  made->options = options;
  instances_.push_back(made);
  return made;
}

std::vector<LinearChoice> LinearAssembler::choose(abi::LinearProblem problem, const LinearRule& rule,
                                                  const std::string& name) {
  std::vector<LinearChoice> choices;
  std::vector<Refusal> refused;
  const auto add = [&](LinearChoice choice) {
    choice.min_rows = choice.problem.min_rows;
    choice.max_rows = choice.problem.max_rows;
    choice.rule = rule.choice.key_path;
    choice.rule_line = rule.choice.line;
    choice.refused = refused;
    choices.push_back(std::move(choice));
  };
  const std::vector<std::uint32_t> attempts = fusion_attempts(problem.fusions);
  for (const Candidate& candidate : candidates(rule.choice)) {
    std::shared_ptr<LinearInstance> asked = instance(rule.choice, candidate);
    if (!asked->plugin) {  // it cannot be asked here, so it is taken to serve what the file gives it
      LinearChoice choice;
      choice.problem = problem;
      choice.instance = std::move(asked);
      add(std::move(choice));
      return choices;
    }
    SinkText reasons;
    const std::size_t taken = first_taken(*asked, problem, attempts, reasons);
    if (taken == attempts.size()) {
      refused.push_back({candidate.name, reasons.text()});
      continue;
    }
    // A plugin may fuse more at fewer rows.
    for (std::size_t better = 0; better < taken; ++better) {
      abi::LinearProblem few = problem;
      few.fusions = attempts[better];
      few.max_rows = most_rows(*asked, few);
      if (few.max_rows == 0) continue;
      add(planned(few, asked, name));
      problem.min_rows = few.max_rows + 1;
    }
    problem.fusions = attempts[taken];
    add(planned(problem, std::move(asked), name));
    return choices;
  }
  throw_error(ErrorKind::plugin, "{}:{}: {}: no linear plugin takes {} ({}); name another plugin or a fallback:{}",
              config_.file.string(), rule.choice.line, rule.choice.key_path, name, sdk::to_string(problem),
              refusals_text(refused));
}

LinearModule LinearAssembler::bind(std::vector<LinearSpec::Part> parts, const LinearSpec& spec,
                                   const std::vector<Interval>& intervals) {
  abi::LinearProblem problem = make_problem(parts, spec, device_, activations_);
  std::vector<LinearChoice> choices;
  for (const Interval& interval : intervals) {
    problem.min_rows = interval.min_rows;
    problem.max_rows = interval.max_rows;
    std::vector<LinearChoice> of_rule = choose(problem, *interval.rule, parts.front().name);
    std::move(of_rule.begin(), of_rule.end(), std::back_inserter(choices));
  }
  return {std::move(parts), spec.in_features, spec.layer, problem.output, std::move(choices)};
}

LinearGroup LinearAssembler::plan(const LinearSpec& spec) {
  const std::vector<Interval> first = intervals(spec.parts.front().name, spec.max_rows);
  const bool stack = std::all_of(spec.parts.begin(), spec.parts.end(), [&](const LinearSpec::Part& part) {
    return part.format == spec.parts.front().format && intervals(part.name, spec.max_rows) == first;
  });
  std::vector<LinearModule> modules;
  if (stack) {
    modules.push_back(bind(spec.parts, spec, first));
  } else {
    for (const LinearSpec::Part& part : spec.parts)
      modules.push_back(bind({part}, spec, intervals(part.name, spec.max_rows)));
  }
  return LinearGroup(std::move(modules));
}

}  // namespace facet
