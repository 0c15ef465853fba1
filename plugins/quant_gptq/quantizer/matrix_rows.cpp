#include "matrix_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace facet::quantizer {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace

Cut::Cut(std::int64_t all_columns, int code_bits, std::int64_t size)
    : columns(all_columns),
      bits(code_bits),
      group_size(size == -1 ? all_columns : size),
      groups(ceil_div(columns, group_size)),
      per_word(32 / bits),
      words_per_row(ceil_div(columns, per_word)) {}

std::int64_t Cut::group_width(std::int64_t group) const {
  return std::min(group_size, columns - group_begin(group));
}

void check_format(const Matrix& matrix, int bits, std::int64_t group_size) {
  const auto fail = [&](const std::string& what) { throw QuantizeError("tensor '" + matrix.name + "': " + what); };
  if (bits != 4 && bits != 8) fail("cannot quantize to " + std::to_string(bits) + " bits, only to 4 and 8");
  if (group_size != -1 && group_size <= 0) {
    fail("group size " + std::to_string(group_size) + " is neither positive nor -1");
  }
  if (matrix.rows <= 0 || matrix.columns <= 0 || matrix.values == nullptr) {
    fail("shape [" + std::to_string(matrix.rows) + ", " + std::to_string(matrix.columns) + "] cannot be quantized");
  }
}

void require_width(const Matrix& matrix, std::int64_t columns) {
  if (matrix.columns == columns) return;
  throw QuantizeError("tensor '" + matrix.name + "': has " + std::to_string(matrix.columns) +
                      " inputs, its calibration has " + std::to_string(columns));
}

void refuse_value(const Matrix& matrix, std::int64_t row, std::int64_t column) {
  throw QuantizeError("tensor '" + matrix.name + "': value at [" + std::to_string(row) + ", " + std::to_string(column) +
                      "] is NaN or infinite");
}

std::int64_t load_row(const Matrix& matrix, std::int64_t row, float* destination) {
  std::int64_t bad = -1;
  if (matrix.type == Matrix::Type::f32) {
    const float* source = static_cast<const float*>(matrix.values) + row * matrix.columns;
    std::memcpy(destination, source, static_cast<std::size_t>(matrix.columns) * sizeof(float));
  } else {
    const std::uint16_t* source = static_cast<const std::uint16_t*>(matrix.values) + row * matrix.columns;
    for (std::int64_t i = 0; i < matrix.columns; ++i) {
      destination[i] = std::bit_cast<float>(static_cast<std::uint32_t>(source[i]) << 16);
    }
  }
  for (std::int64_t i = matrix.columns; i-- > 0;) {
    if (!std::isfinite(destination[i])) bad = i;
  }
  return bad;
}

void pack_row(const Cut& cut, const std::uint8_t* codes, int padding, std::uint32_t* words) {
  for (std::int64_t column = 0; column < cut.words_per_row * cut.per_word; ++column) {
    const std::uint32_t code = column < cut.columns ? codes[column] : static_cast<std::uint32_t>(padding);
    words[column / cut.per_word] |= code << (cut.bits * (column % cut.per_word));
  }
}

Quantized empty_result(const Cut& cut, std::int64_t rows, bool symmetric) {
  Quantized result;
  result.groups = cut.groups;
  result.words.assign(static_cast<std::size_t>(rows * cut.words_per_row), 0);
  result.scales.assign(static_cast<std::size_t>(rows * cut.groups), 0.0f);
  if (!symmetric) result.zeros.assign(result.scales.size(), 0);
  return result;
}

}  // namespace facet::quantizer
