#include "facet/measure/logit_difference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace facet {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

// log of the sum of exp(values), in double.
double log_sum_exp(std::span<const float> values, double largest) {
  double sum = 0;
  for (const float value : values) sum += std::exp(static_cast<double>(value) - largest);
  return largest + std::log(sum);
}

// std::max would drop a NaN.
double larger(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? kNaN : std::max(a, b);
}

}  // namespace

LogitDifference compare_logits(std::span<const float> reference, std::span<const float> variant) {
  if (reference.empty() || reference.size() != variant.size() || !all_finite(reference) || !all_finite(variant))
    return {kNaN, false, kNaN};
  const auto top_reference = std::max_element(reference.begin(), reference.end());
  const auto top_variant = std::max_element(variant.begin(), variant.end());
  const double total_reference = log_sum_exp(reference, static_cast<double>(*top_reference));
  const double total_variant = log_sum_exp(variant, static_cast<double>(*top_variant));
  LogitDifference result;
  result.same_top = top_reference - reference.begin() == top_variant - variant.begin();
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double r = static_cast<double>(reference[i]), v = static_cast<double>(variant[i]);
    result.largest = std::max(result.largest, std::abs(v - r));
    // sum p (log p - log q) = sum p (q/p - 1 - log(q/p)), because p and q both sum to 1. No term of the second form is
    // negative, so models that hardly differ do not drown in cancellation.
    const double log_p = r - total_reference, ratio = (v - total_variant) - log_p;
    const double p = std::exp(log_p);
    // exp(ratio) may overflow where p is 0; q is finite.
    const double term = ratio < 1 ? p * (std::expm1(ratio) - ratio) : std::exp(log_p + ratio) - p - p * ratio;
    result.kl += std::max(term, 0.0);
  }
  return result;
}

void LogitDifferenceSum::add(const LogitDifference& difference) {
  add(LogitDifferenceSum{1, difference.kl, difference.same_top ? 1 : 0, difference.largest});
}

void LogitDifferenceSum::add(const LogitDifferenceSum& other) {
  predictions += other.predictions;
  kl += other.kl;
  same_top += other.same_top;
  largest = larger(largest, other.largest);
}

double LogitDifferenceSum::mean_kl() const {
  return kl / static_cast<double>(predictions);
}

double LogitDifferenceSum::top1_agreement() const {
  return static_cast<double>(same_top) / static_cast<double>(predictions);
}

}  // namespace facet
