#include "facet/measure/percentiles.h"

#include <algorithm>
#include <cmath>

namespace facet {

double sorted_quantile(const std::vector<double>& values, double share) {
  const double place = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (place - std::floor(place));
}

std::optional<Percentiles> percentiles(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  return Percentiles{sorted_quantile(values, 0.5), sorted_quantile(values, 0.9), sorted_quantile(values, 0.99)};
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return sorted_quantile(values, 0.5);
}

}  // namespace facet
