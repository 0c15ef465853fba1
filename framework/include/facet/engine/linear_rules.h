// Which rule of [linear] decides for a module at a row count.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "facet/config/config.h"

namespace facet {

// Rows [min_rows, max_rows] of a module and the rule that decides for them, null where none does.
struct RuleRows {
  std::int64_t min_rows;
  std::int64_t max_rows;
  const LinearRule* rule;
  bool operator==(const RuleRows&) const = default;
};

// Rows 1 to max_rows of the module in order, each run of them with the first rule that matches.
std::vector<RuleRows> rule_rows(std::span<const LinearRule> rules, const std::string& module, std::int64_t max_rows);

}  // namespace facet
