// Do two variants say the same?
#pragma once

#include <cstdint>
#include <vector>

namespace facet {

// Generated ids of two variants, compared request by request.
struct Equivalence {
  std::int64_t positions = 0;  // sum of the longer output of each request, so a token that one lacks counts as unequal
  std::int64_t equal = 0;      // positions at which both have the same id
  std::int64_t requests_equal = 0;             // requests whose whole output is the same, over all added rounds
  std::vector<std::int64_t> first_divergence;  // [requests]: index of the first unequal token, -1 for none

  // equal / positions; 1 when nothing was generated at all.
  double share() const;
};

// Adds one round: a[i] and b[i] are the ids of request i. All rounds have the same requests. A request is equal when it
// is equal in every round; its first divergence is the earliest of all rounds.
void add_outputs(const std::vector<std::vector<std::int32_t>>& a, const std::vector<std::vector<std::int32_t>>& b,
                 Equivalence& total);

// Mean of |a - b| over values of the same predictions; NaN when sizes differ or there is none.
double mean_absolute_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace facet
