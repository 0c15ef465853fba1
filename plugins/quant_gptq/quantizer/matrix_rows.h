// Rows of a dense matrix as floats, and rows of codes as packed words: what every quantizer of a matrix needs.
#pragma once

#include <cstdint>

#include "facet/quantizer/rtn.h"

namespace facet::quantizer {

// How a matrix of `columns` inputs is cut for a format.
struct Cut {
  Cut(std::int64_t columns, int bits, std::int64_t group_size);

  std::int64_t columns;
  int bits;
  std::int64_t group_size;  // never -1
  std::int64_t groups;
  std::int64_t per_word;
  std::int64_t words_per_row;

  std::int64_t group_begin(std::int64_t group) const { return group * group_size; }
  std::int64_t group_width(std::int64_t group) const;
};

// Throws QuantizeError for bits, group size or shape out of range.
void check_format(const Matrix& matrix, int bits, std::int64_t group_size);
// Throws QuantizeError when the matrix has another width than its calibration.
void require_width(const Matrix& matrix, std::int64_t columns);
[[noreturn]] void refuse_value(const Matrix& matrix, std::int64_t row, std::int64_t column);

// Row as floats; returns the first column that is not finite, or -1.
std::int64_t load_row(const Matrix& matrix, std::int64_t row, float* destination);

// Codes into zero-filled words; columns past the last hold `padding`, the zero code of the last group.
void pack_row(const Cut& cut, const std::uint8_t* codes, int padding, std::uint32_t* words);

// Vectors of the sizes that the format needs, zero-filled.
Quantized empty_result(const Cut& cut, std::int64_t rows, bool symmetric);

}  // namespace facet::quantizer
