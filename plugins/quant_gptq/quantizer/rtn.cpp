#include "facet/quantizer/rtn.h"

#include <algorithm>

#include "matrix_rows.h"
#include "parallel.h"
#include "rtn_group.h"

namespace facet::quantizer {
namespace {

// What every row needs, and where the results go.
struct Job {
  const Matrix& matrix;
  const RtnOptions& options;
  Cut cut;
  Quantized& result;
  std::vector<double>& row_errors;
  std::vector<std::int64_t>& bad_columns;  // per row, -1 when finite
};

void quantize_row(const Job& job, std::int64_t row, std::vector<float>& values, std::vector<std::uint8_t>& codes) {
  job.bad_columns[static_cast<std::size_t>(row)] = load_row(job.matrix, row, values.data());
  if (job.bad_columns[static_cast<std::size_t>(row)] >= 0) return;
  int zero = 0;
  for (std::int64_t group = 0; group < job.cut.groups; ++group) {
    const std::int64_t begin = job.cut.group_begin(group);
    const GroupResult found =
        quantize_group(values.data() + begin, job.cut.group_width(group), job.options, codes.data() + begin);
    const auto cell = static_cast<std::size_t>(row * job.cut.groups + group);
    job.result.scales[cell] = found.scale;
    if (!job.options.symmetric) job.result.zeros[cell] = static_cast<std::uint8_t>(found.zero);
    job.row_errors[static_cast<std::size_t>(row)] += found.error;
    zero = found.zero;
  }
  pack_row(job.cut, codes.data(), zero, job.result.words.data() + row * job.cut.words_per_row);
}

}  // namespace

Quantized quantize_rtn(const Matrix& matrix, const RtnOptions& options, const ParallelFor& parallel) {
  check_format(matrix, options.bits, options.group_size);
  const Cut cut(matrix.columns, options.bits, options.group_size);
  Quantized result = empty_result(cut, matrix.rows, options.symmetric);
  std::vector<double> row_errors(static_cast<std::size_t>(matrix.rows), 0.0);
  std::vector<std::int64_t> bad_columns(static_cast<std::size_t>(matrix.rows), -1);
  const Job job{matrix, options, cut, result, row_errors, bad_columns};
  run(parallel, matrix.rows, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(matrix.columns));
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(matrix.columns));
    for (std::int64_t row = begin; row < end; ++row) quantize_row(job, row, values, codes);
  });
  // Collected by row and judged here, so that neither errors nor sums depend on how the rows were split.
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const std::int64_t bad = bad_columns[static_cast<std::size_t>(row)];
    if (bad >= 0) refuse_value(matrix, row, bad);
    result.squared_error += row_errors[static_cast<std::size_t>(row)];
  }
  return result;
}

float dequantize(const Quantized& quantized, const RtnOptions& options, std::int64_t columns, std::int64_t row,
                 std::int64_t column) {
  const Cut cut(columns, options.bits, options.group_size);
  const std::uint32_t word = quantized.words[static_cast<std::size_t>(row * cut.words_per_row + column / cut.per_word)];
  const auto code = static_cast<int>((word >> (options.bits * (column % cut.per_word))) & ((1u << options.bits) - 1u));
  const auto cell = static_cast<std::size_t>(row * quantized.groups + column / cut.group_size);
  const int zero = options.symmetric ? grid_of(options.bits).middle : quantized.zeros[cell];
  return static_cast<float>(code - zero) * quantized.scales[cell];
}

}  // namespace facet::quantizer
