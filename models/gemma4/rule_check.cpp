#include "gemma4/rule_check.h"

#include <algorithm>
#include <limits>
#include <set>
#include <span>

#include "facet/base/log.h"
#include "facet/base/text.h"

namespace facet::gemma4 {
namespace {

constexpr std::int64_t kAnyRows = std::numeric_limits<std::int64_t>::max();

std::vector<std::string> matched_modules(const LinearRule& rule, const std::vector<LinearSpec>& specs) {
  std::vector<std::string> names;
  for (const LinearSpec& spec : specs) {
    for (const LinearSpec::Part& part : spec.parts) {
      if (glob_match(rule.layers, part.name)) names.push_back(part.name);
    }
  }
  return names;
}

// Rules that decide for rows of a rule: itself, or those that come before it.
std::set<const LinearRule*> deciding(std::span<const LinearRule> rules, const LinearRule& rule,
                                     const std::vector<std::string>& modules) {
  const std::int64_t last = rule.max_rows == 0 ? kAnyRows : rule.max_rows;
  std::set<const LinearRule*> found;
  for (const std::string& module : modules) {
    for (const RuleRows& rows : rule_rows(rules, module, last)) {
      if (rows.max_rows >= rule.min_rows) found.insert(rows.rule);
    }
  }
  return found;
}

bool meets_in_a_step(std::span<const LinearRule> rules, const LinearRule& rule, const std::vector<LinearSpec>& specs) {
  return std::any_of(specs.begin(), specs.end(), [&](const LinearSpec& spec) {
    return std::any_of(spec.parts.begin(), spec.parts.end(), [&](const LinearSpec::Part& part) {
      const std::vector<RuleRows> decided = rule_rows(rules, part.name, spec.max_rows);
      return std::any_of(decided.begin(), decided.end(), [&](const RuleRows& rows) { return rows.rule == &rule; });
    });
  });
}

// `rules` are those that come from one file; the first that matches decides.
void check_file(const Config& config, std::span<const LinearRule> rules, const std::vector<LinearSpec>& specs,
                Problems& problems) {
  for (const LinearRule& rule : rules) {
    if (&rule == &config.linear.back()) return;
    const std::string place = fmt::format("{}:{}: {}", config.file.string(), rule.choice.line, rule.choice.key_path);
    const std::vector<std::string> modules = matched_modules(rule, specs);
    if (modules.empty()) {
      problems.add("{}.layers: '{}' matches no module; modules are named like {} and lm_head", place, rule.layers,
                   specs.front().parts.front().name);
      continue;
    }
    const std::set<const LinearRule*> before = deciding(rules, rule, modules);
    if (before.count(&rule) == 0) {
      std::string names;
      for (const LinearRule* other : before) names += (names.empty() ? "" : ", ") + other->choice.key_path;
      problems.add("{}: what it matches is served by rules before it ({}); put it before them, or leave it out", place,
                   names);
    } else if (!meets_in_a_step(rules, rule, specs)) {
      log(LogLevel::warn, "{}: its rows, from {}, never meet in a step of engine.max_step_tokens {}", place,
          rule.min_rows, config.engine.max_step_tokens);
    }
  }
}

}  // namespace

std::vector<LinearRule> rules_with_work(const std::vector<LinearRule>& rules, const std::vector<LinearSpec>& specs) {
  std::vector<LinearRule> kept;
  for (const LinearRule& rule : rules) {
    if (&rule == &rules.back() || deciding(rules, rule, matched_modules(rule, specs)).count(&rule) != 0)
      kept.push_back(rule);
  }
  return kept;
}

// Silence would make a comparison of two files one of a file with itself.
void check_rules(const Config& config, const std::vector<LinearSpec>& specs) {
  const std::span<const LinearRule> rules = config.linear;
  Problems problems;
  check_file(config, rules.first(config.tuning.rules), specs, problems);
  check_file(config, rules.subspan(config.tuning.rules), specs, problems);
  problems.throw_if_any(ErrorKind::config, "linear rules that can never serve anything:");
}

}  // namespace facet::gemma4
