// Percentiles of measured values.
#pragma once

#include <optional>
#include <vector>

namespace facet {

// Value below which `share` (0 to 1) of the sorted, non-empty `values` lie, by linear interpolation between neighbours
// (type 7 of Hyndman and Fan 1996, the default of NumPy).
double sorted_quantile(const std::vector<double>& values, double share);

struct Percentiles {
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};

// Of finite values in any order; nothing for no values.
std::optional<Percentiles> percentiles(std::vector<double> values);

// Median of finite values; 0 for no values.
double median(std::vector<double> values);

}  // namespace facet
