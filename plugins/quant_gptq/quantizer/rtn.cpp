#include "facet/quantizer/rtn.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "rtn_group.h"

namespace facet::quantizer {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

void check(const Matrix& matrix, const RtnOptions& options) {
  const auto fail = [&](const std::string& what) { throw QuantizeError("tensor '" + matrix.name + "': " + what); };
  if (options.bits != 4 && options.bits != 8)
    fail("cannot quantize to " + std::to_string(options.bits) + " bits, only to 4 and 8");
  if (options.group_size != -1 && options.group_size <= 0) {
    fail("group size " + std::to_string(options.group_size) + " is neither positive nor -1");
  }
  if (matrix.rows <= 0 || matrix.columns <= 0 || matrix.values == nullptr) {
    fail("shape [" + std::to_string(matrix.rows) + ", " + std::to_string(matrix.columns) + "] cannot be quantized");
  }
}

// Row as floats; returns the first column that is not finite, or -1.
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

// What every row needs, and where the results go.
struct Job {
  const Matrix& matrix;
  const RtnOptions& options;
  Quantized& result;
  std::vector<double>& row_errors;
  std::vector<std::int64_t>& bad_columns;  // per row, -1 when finite
  std::int64_t group_size;
  std::int64_t per_word;
  std::int64_t words_per_row;
};

void quantize_row(const Job& job, std::int64_t row, std::vector<float>& values, std::vector<std::uint8_t>& codes) {
  const std::int64_t columns = job.matrix.columns;
  job.bad_columns[static_cast<std::size_t>(row)] = load_row(job.matrix, row, values.data());
  if (job.bad_columns[static_cast<std::size_t>(row)] >= 0) return;
  int zero = 0;
  for (std::int64_t group = 0; group < job.result.groups; ++group) {
    const std::int64_t begin = group * job.group_size;
    const std::int64_t count = std::min(job.group_size, columns - begin);
    const GroupResult found = quantize_group(values.data() + begin, count, job.options, codes.data() + begin);
    const auto cell = static_cast<std::size_t>(row * job.result.groups + group);
    job.result.scales[cell] = found.scale;
    if (!job.options.symmetric) job.result.zeros[cell] = static_cast<std::uint8_t>(found.zero);
    job.row_errors[static_cast<std::size_t>(row)] += found.error;
    zero = found.zero;
  }
  std::uint32_t* words = job.result.words.data() + row * job.words_per_row;
  for (std::int64_t column = 0; column < job.words_per_row * job.per_word; ++column) {
    const std::uint32_t code =
        column < columns ? codes[static_cast<std::size_t>(column)] : static_cast<std::uint32_t>(zero);
    words[column / job.per_word] |= code << (job.options.bits * (column % job.per_word));
  }
}

}  // namespace

Quantized quantize_rtn(const Matrix& matrix, const RtnOptions& options, const ParallelFor& parallel) {
  check(matrix, options);
  const std::int64_t group_size = options.group_size == -1 ? matrix.columns : options.group_size;
  const std::int64_t per_word = 32 / options.bits;
  const std::int64_t words_per_row = ceil_div(matrix.columns, per_word);
  Quantized result;
  result.groups = ceil_div(matrix.columns, group_size);
  result.words.assign(static_cast<std::size_t>(matrix.rows * words_per_row), 0);
  result.scales.assign(static_cast<std::size_t>(matrix.rows * result.groups), 0.0f);
  if (!options.symmetric) result.zeros.assign(result.scales.size(), 0);
  std::vector<double> row_errors(static_cast<std::size_t>(matrix.rows), 0.0);
  std::vector<std::int64_t> bad_columns(static_cast<std::size_t>(matrix.rows), -1);
  const Job job{matrix, options, result, row_errors, bad_columns, group_size, per_word, words_per_row};
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(matrix.columns));
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(matrix.columns));
    for (std::int64_t row = begin; row < end; ++row) quantize_row(job, row, values, codes);
  };
  if (parallel) {
    parallel(matrix.rows, body);
  } else {
    body(0, matrix.rows);
  }
  // Collected by row and judged here, so that neither errors nor sums depend on how the rows were split.
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const std::int64_t bad = bad_columns[static_cast<std::size_t>(row)];
    if (bad >= 0) {
      throw QuantizeError("tensor '" + matrix.name + "': value at [" + std::to_string(row) + ", " +
                          std::to_string(bad) + "] is NaN or infinite");
    }
    result.squared_error += row_errors[static_cast<std::size_t>(row)];
  }
  return result;
}

float dequantize(const Quantized& quantized, const RtnOptions& options, std::int64_t columns, std::int64_t row,
                 std::int64_t column) {
  const std::int64_t per_word = 32 / options.bits;
  const std::int64_t group_size = options.group_size == -1 ? columns : options.group_size;
  const std::uint32_t word =
      quantized.words[static_cast<std::size_t>(row * ceil_div(columns, per_word) + column / per_word)];
  const auto code = static_cast<int>((word >> (options.bits * (column % per_word))) & ((1u << options.bits) - 1u));
  const auto cell = static_cast<std::size_t>(row * quantized.groups + column / group_size);
  const int zero = options.symmetric ? grid_of(options.bits).middle : quantized.zeros[cell];
  return static_cast<float>(code - zero) * quantized.scales[cell];
}

}  // namespace facet::quantizer
