// The inside of GptqInput.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "facet/quantizer/gptq.h"

namespace facet::quantizer {

// What follows from the diagonal of H alone.
struct Diagonal {
  Diagonal(std::vector<double> diagonal, ColumnOrder order);

  std::vector<double> values;       // with the mean where a column is dead
  std::vector<std::int64_t> order;  // position -> column
  std::vector<float> importance;    // by column, relative to the mean and with a floor, for weighted searches
  double mean = 1;
  std::int64_t dead = 0;
};

struct Damped {
  double damping;
  int failures;
};
// Calls attempt(damping) with the wanted share of the mean, and with ten times as much after each failure. Throws
// QuantizeError when a million times the mean fails.
Damped factor_with_damping(const Diagonal& diagonal, double share, const std::function<bool(double damping)>& attempt);

struct GptqInput::Parts {
  std::int64_t columns = 0;
  std::vector<std::int64_t> order;  // position -> column
  // Upper factor U of the inverse: (H + damping)^-1 = U^T U, rows and columns by position. Row i holds how an error of
  // position i spreads over later ones. Empty without feedback.
  std::vector<float> upper;
  std::vector<float> hessian;     // H itself, by column, not damped
  std::vector<float> importance;  // diagonal of H by column, with a floor, for weighted searches
  std::vector<float> correction;  // C (H + damping)^-1 by column; empty without correction
  std::int64_t dead = 0;
  double damping = 0;
  int failures = 0;

  std::size_t index(std::int64_t i, std::int64_t j) const { return static_cast<std::size_t>(i * columns + j); }
};

}  // namespace facet::quantizer
