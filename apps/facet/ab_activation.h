// What differs between two variants, and whether the difference ever ran.
#pragma once

#include "ab_rounds.h"

namespace facet::cli {

// A place whose plugin or setting differs.
struct AbDifference {
  std::string key;  // "engine.prefill_chunk", "attention.global", "linear"
  std::string a, b;
};

// A plugin that does a job in one variant which another plugin, or the same with other options, does in the other.
struct AbSwitch {
  std::string variant;
  std::string place;  // "linear", "attention.sliding", ...
  std::string plugin;
  std::string options;
  std::string where;  // for linear plugins: modules and row counts
  std::int64_t calls = 0;
};

// Empty for the same resolved settings: an A/A comparison.
std::vector<AbDifference> differences(const AbVariant& a, const AbVariant& b);
// Of both variants, with their calls in measured rounds.
std::vector<AbSwitch> switches(const AbVariant& a, const AbVariant& b);

// Throws Error(run) naming variant, place and plugin of every switched plugin that was never called.
void require_activation(const std::vector<AbVariant>& variants);

}  // namespace facet::cli
