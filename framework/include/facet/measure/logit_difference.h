// How far one model's logits are from another's.
#pragma once

#include <cstdint>
#include <span>

namespace facet {

// Two rows of logits for the same prediction.
struct LogitDifference {
  double kl = 0;          // KL(reference || variant) of the two softmaxes, in nats
  bool same_top = false;  // both have the same most probable id, the lowest among equals
  double largest = 0;     // largest |variant - reference|
};

// Rows are [vocabulary] and equally long. Sums in double; kl is never below 0, and 0 for equal rows. All values are NaN
// and same_top is false when the rows are empty, differ in length or hold a value that is not finite: a mean must not
// hide it.
LogitDifference compare_logits(std::span<const float> reference, std::span<const float> variant);

// Over many predictions. Default-constructed: none.
struct LogitDifferenceSum {
  std::int64_t predictions = 0;
  double kl = 0;
  std::int64_t same_top = 0;
  double largest = 0;

  // A NaN stays.
  void add(const LogitDifference& difference);
  void add(const LogitDifferenceSum& other);
  // Per prediction; NaN when there is none.
  double mean_kl() const;
  double top1_agreement() const;
};

}  // namespace facet
