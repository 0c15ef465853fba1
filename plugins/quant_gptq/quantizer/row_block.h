// Some rows of a matrix while they are being quantized: floats, codes and scales side by side.
#pragma once

#include <cstdint>
#include <vector>

#include "gptq_input.h"
#include "matrix_rows.h"
#include "rtn_group.h"

namespace facet::quantizer {

// Rows that travel together: enough for matrix products, few enough to stay in the cache. The split into blocks is
// fixed, so that results do not depend on threads.
inline constexpr std::int64_t kBlockRows = 64;

// Codes with scales and zero codes for a block of rows.
struct Codes {
  Codes(const Cut& cut, std::int64_t rows)
      : codes(static_cast<std::size_t>(rows * cut.columns)),
        scales(static_cast<std::size_t>(rows * cut.groups)),
        zeros(static_cast<std::size_t>(rows * cut.groups)) {}

  std::vector<std::uint8_t> codes;  // [rows, columns]
  std::vector<float> scales;        // [rows, groups]
  std::vector<float> zeros;         // [rows, groups], whole numbers
};

struct RowBlock {
  const GptqInput::Parts& input;
  const GptqOptions& options;
  const Cut& cut;
  const Blas& blas;
  std::int64_t rows;
  std::vector<float> weights;  // [rows, columns]: the target

  std::size_t at(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(row * cut.columns + column);
  }
  std::size_t cell(std::int64_t row, std::int64_t group) const {
    return static_cast<std::size_t>(row * cut.groups + group);
  }
  float value(const Codes& codes, std::int64_t row, std::int64_t column) const {
    const std::size_t place = cell(row, column / cut.group_size);
    return (static_cast<float>(codes.codes[at(row, column)]) - codes.zeros[place]) * codes.scales[place];
  }
  // Scale and zero of the group for `values`, which stand for the group's columns.
  void choose(const float* values, std::int64_t row, std::int64_t group, Codes& codes) const;
  std::uint8_t nearest(float value, float scale, float zero) const {
    if (scale == 0) return static_cast<std::uint8_t>(zero);
    return static_cast<std::uint8_t>(code_of(value, scale, zero, static_cast<float>(grid_of(cut.bits).largest)));
  }
};

// Round to nearest.
Codes round_rows(const RowBlock& block);
// Rounds with feedback. `fixed` holds the scales of an activation order. Adds each row's predicted loss to
// losses[rows].
Codes feed_back(const RowBlock& block, const Codes& fixed, double* losses);
// Coordinate descent over codes and scales. Never raises the error of a row.
void refine(const RowBlock& block, Codes& codes);
// errors[row] = 1/2 d H d^T for d = weights - codes, or d = weights when `codes` is null.
std::vector<double> row_errors(const RowBlock& block, const Codes* codes);

}  // namespace facet::quantizer
