#include "facet/engine/linear_rules.h"

#include <algorithm>
#include <set>

#include "facet/base/text.h"

namespace facet {

std::vector<RuleRows> rule_rows(std::span<const LinearRule> rules, const std::string& module, std::int64_t max_rows) {
  std::vector<const LinearRule*> matching;
  // A decision can change only where some rule begins or ends.
  std::set<std::int64_t> starts = {1};
  for (const LinearRule& rule : rules) {
    if (!glob_match(rule.layers, module)) continue;
    matching.push_back(&rule);
    if (rule.min_rows <= max_rows) starts.insert(rule.min_rows);
    if (rule.max_rows > 0 && rule.max_rows < max_rows) starts.insert(rule.max_rows + 1);
  }
  std::vector<RuleRows> result;
  for (const std::int64_t rows : starts) {
    const auto first = std::find_if(matching.begin(), matching.end(), [rows](const LinearRule* rule) {
      return rows >= rule->min_rows && (rule->max_rows == 0 || rows <= rule->max_rows);
    });
    const LinearRule* rule = first == matching.end() ? nullptr : *first;
    if (!result.empty() && result.back().rule == rule) continue;
    if (!result.empty()) result.back().max_rows = rows - 1;
    result.push_back({rows, max_rows, rule});
  }
  return result;
}

}  // namespace facet
