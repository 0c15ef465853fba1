#include "facet/measure/equivalence.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace facet {

double Equivalence::share() const {
  return positions == 0 ? 1.0 : static_cast<double>(equal) / static_cast<double>(positions);
}

void add_outputs(const std::vector<std::vector<std::int32_t>>& a, const std::vector<std::vector<std::int32_t>>& b,
                 Equivalence& total) {
  total.first_divergence.resize(std::max(a.size(), b.size()), -1);
  for (std::size_t request = 0; request < std::min(a.size(), b.size()); ++request) {
    const std::vector<std::int32_t>&left = a[request], &right = b[request];
    const std::size_t longer = std::max(left.size(), right.size()), shorter = std::min(left.size(), right.size());
    std::size_t first = longer;
    for (std::size_t i = longer; i-- > 0;) {
      if (i < shorter && left[i] == right[i]) {
        ++total.equal;
      } else {
        first = i;
      }
    }
    total.positions += static_cast<std::int64_t>(longer);
    if (first == longer) continue;
    std::int64_t& earliest = total.first_divergence[request];
    const auto place = static_cast<std::int64_t>(first);
    earliest = earliest < 0 ? place : std::min(earliest, place);
  }
  total.requests_equal = std::count(total.first_divergence.begin(), total.first_divergence.end(), -1);
}

double mean_absolute_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.empty() || a.size() != b.size()) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return sum / static_cast<double>(a.size());
}

}  // namespace facet
