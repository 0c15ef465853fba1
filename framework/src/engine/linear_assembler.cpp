#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>

#include "facet/engine/linear_module.h"
#include "facet/sdk/linear.h"
#include "kv_plan_check.h"

namespace facet {

namespace {

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

bool takes(const LinearInstance& asked, const abi::LinearProblem& problem, SinkText& reasons) {
  reasons = {};
  return asked.plugin->supports(problem, reasons.sink()) != 0;
}

// How `asked` serves all rows of the problem: the number of the first attempt that it takes; none of them: their
// number. `reasons` are those of the last.
std::size_t first_taken(const LinearInstance& asked, abi::LinearProblem problem,
                        const std::vector<std::uint32_t>& attempts, SinkText& reasons) {
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    problem.fusions = attempts[i];
    if (takes(asked, problem, reasons)) return i;
  }
  return attempts.size();
}

// Of a problem that `asked` refuses: its rows from one end on that it takes with the problem's fusions. `from` is the
// end, `moved` what to move towards it; 0: not even one row.
std::int64_t taken_rows(const LinearInstance& asked, abi::LinearProblem problem, std::int64_t from,
                        std::int64_t abi::LinearProblem::*moved) {
  const auto takes_to = [&](std::int64_t rows) {
    problem.*moved = rows;
    SinkText reasons;
    return takes(asked, problem, reasons);
  };
  std::int64_t refused = problem.*moved;
  std::int64_t taken = from;
  if (taken == refused || !takes_to(taken)) return 0;
  while (std::abs(taken - refused) > 1) {
    const std::int64_t middle = taken + (refused - taken) / 2;
    (takes_to(middle) ? taken : refused) = middle;
  }
  return taken;
}

// Takes off the problem what `asked` takes with more fusions at one end of its rows, `kept`, up to `moved`; `step` is
// the way to the rest, which must be taken, too. Nothing when it cannot be divided so.
std::optional<abi::LinearProblem> take_end(const LinearInstance& asked, abi::LinearProblem& problem,
                                           std::uint32_t fusions, std::int64_t abi::LinearProblem::*kept,
                                           std::int64_t abi::LinearProblem::*moved, std::int64_t step) {
  abi::LinearProblem end = problem, rest = problem;
  end.fusions = fusions;
  end.*moved = taken_rows(asked, end, end.*kept, moved);
  rest.*kept = end.*moved + step;
  SinkText reasons;
  if (end.*moved == 0 || !takes(asked, rest, reasons)) return std::nullopt;
  problem = rest;
  return end;
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

std::vector<RuleRows> LinearAssembler::intervals(const std::string& name, std::int64_t max_rows) const {
  std::vector<RuleRows> result = rule_rows(config_.linear, name, max_rows);
  for (const RuleRows& rows : result) {
    if (rows.rule == nullptr) {
      throw_error(ErrorKind::config, "{}: no [linear] rule covers '{}' with {} rows; give [linear] a default plugin",
                  config_.file.string(), name, rows.min_rows);
    }
  }
  return result;
}

std::shared_ptr<LinearInstance> LinearAssembler::instance(const PluginChoice& choice, const Candidate& candidate) {
  const ResolvedPlugin resolved = resolve_plugin(config_, registry_, abi::PluginKind::linear, choice, candidate);
  const std::string options = resolved.options.to_string();
  for (const auto& known : instances_) {
    if (&known->plugin.plugin() == &resolved.plugin && known->options == options) return known;
  }
  auto made = make_plugin<abi::Linear>(config_, registry_, candidate, resolved);
  instances_.push_back(std::make_shared<LinearInstance>());
  instances_.back()->plugin = std::move(made.instance);
  instances_.back()->options = std::move(made.options);
  return instances_.back();
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
    problem.fusions = attempts[taken];
    // A plugin may fuse more at fewer rows or at more, and may refuse the range between.
    std::vector<abi::LinearProblem> more_rows;
    for (std::size_t better = 0; better < taken; ++better) {
      constexpr auto kLeast = &abi::LinearProblem::min_rows, kMost = &abi::LinearProblem::max_rows;
      if (const auto few = take_end(*asked, problem, attempts[better], kLeast, kMost, 1))
        add(planned(*few, asked, name));
      if (const auto many = take_end(*asked, problem, attempts[better], kMost, kLeast, -1)) more_rows.push_back(*many);
    }
    add(planned(problem, asked, name));
    for (auto many = more_rows.rbegin(); many != more_rows.rend(); ++many) add(planned(*many, asked, name));
    return choices;
  }
  problem.fusions = attempts.back();  // the reasons are of what was asked last
  throw_error(ErrorKind::plugin, "{}:{}: {}: no linear plugin takes {} ({}); name another plugin or a fallback:{}",
              config_.file.string(), rule.choice.line, rule.choice.key_path, name, sdk::to_string(problem),
              refusals_text(refused));
}

LinearModule LinearAssembler::bind(std::vector<LinearSpec::Part> parts, const LinearSpec& spec,
                                   const std::vector<RuleRows>& intervals) {
  abi::LinearProblem problem = make_problem(parts, spec, device_, activations_);
  std::vector<LinearChoice> choices;
  for (const RuleRows& interval : intervals) {
    problem.min_rows = interval.min_rows;
    problem.max_rows = interval.max_rows;
    std::vector<LinearChoice> of_rule = choose(problem, *interval.rule, parts.front().name);
    std::move(of_rule.begin(), of_rule.end(), std::back_inserter(choices));
  }
  return {std::move(parts), spec.in_features, spec.layer, problem.output, std::move(choices)};
}

LinearGroup LinearAssembler::plan(const LinearSpec& spec) {
  const std::vector<RuleRows> first = intervals(spec.parts.front().name, spec.max_rows);
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
