#include "facet/quantizer/gptq.h"

#include <algorithm>

#include "parallel.h"
#include "row_block.h"

namespace facet::quantizer {
namespace {

// What is known of each row when its block is done; summed in order afterwards, so that sums do not depend on threads.
struct RowReport {
  double error = 0, nearest_error = 0, output = 0, predicted_loss = 0;
  bool kept = false;
  std::int64_t bad_column = -1;
};

struct Job {
  const Matrix& matrix;
  const GptqInput::Parts& input;
  const GptqOptions& options;
  const Blas& blas;
  Cut cut;
  Quantized& result;
  std::vector<RowReport>& reports;
};

// The weights whose outputs on the quantized model's inputs are nearest to the original's outputs on its own inputs.
void correct(const Job& job, RowBlock& block) {
  if (job.input.correction.empty() || job.options.correction == 0) return;
  const std::int64_t n = job.cut.columns;
  std::vector<float> moved(block.weights.size());
  job.blas.multiply(block.rows, n, n, {block.weights.data(), n}, {job.input.correction.data(), n}, {moved.data(), n});
  const auto share = static_cast<float>(job.options.correction);
  for (std::size_t i = 0; i < moved.size(); ++i) block.weights[i] += share * moved[i];
}

void store(const Job& job, const RowBlock& block, const Codes& codes, std::int64_t row, std::int64_t target) {
  const Cut& cut = job.cut;
  for (std::int64_t group = 0; group < cut.groups; ++group) {
    const auto cell = static_cast<std::size_t>(target * cut.groups + group);
    job.result.scales[cell] = codes.scales[block.cell(row, group)];
    if (!job.options.symmetric) job.result.zeros[cell] = static_cast<std::uint8_t>(codes.zeros[block.cell(row, group)]);
  }
  const int padding = static_cast<int>(codes.zeros[block.cell(row, cut.groups - 1)]);
  pack_row(cut, codes.codes.data() + block.at(row, 0), padding, job.result.words.data() + target * cut.words_per_row);
}

void quantize_block(const Job& job, std::int64_t first) {
  const std::int64_t rows = std::min(kBlockRows, job.matrix.rows - first);
  RowBlock block{job.input, job.options, job.cut,
                 job.blas,  rows,        std::vector<float>(static_cast<std::size_t>(rows * job.cut.columns))};
  bool finite = true;
  RowReport* reports = job.reports.data() + first;
  for (std::int64_t row = 0; row < rows; ++row) {
    reports[row].bad_column = load_row(job.matrix, first + row, block.weights.data() + block.at(row, 0));
    finite = finite && reports[row].bad_column < 0;
  }
  if (!finite) return;
  correct(job, block);
  const Codes nearest = round_rows(block);
  const std::vector<double> nearest_errors = row_errors(block, &nearest), outputs = row_errors(block, nullptr);
  std::vector<double> losses(static_cast<std::size_t>(rows), 0.0);
  Codes best = job.options.feedback ? feed_back(block, nearest, losses.data()) : nearest;
  if (job.options.refinements > 0) refine(block, best);
  const std::vector<double> errors = row_errors(block, &best);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto r = static_cast<std::size_t>(row);
    const bool keep = nearest_errors[r] < errors[r];
    reports[row] = {keep ? nearest_errors[r] : errors[r], nearest_errors[r], outputs[r], losses[r], keep, -1};
    store(job, block, keep ? nearest : best, row, first + row);
  }
}

}  // namespace

GptqResult quantize_gptq(const Matrix& matrix, const GptqInput& input, const GptqOptions& options, const Blas& blas,
                         const ParallelFor& parallel) {
  check_format(matrix, options.bits, options.group_size);
  require_width(matrix, input.columns());
  const Cut cut(matrix.columns, options.bits, options.group_size);
  GptqResult result;
  result.quantized = empty_result(cut, matrix.rows, options.symmetric);
  std::vector<RowReport> reports(static_cast<std::size_t>(matrix.rows));
  const Job job{matrix, input.parts(), options, blas, cut, result.quantized, reports};
  run(parallel, (matrix.rows + kBlockRows - 1) / kBlockRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) quantize_block(job, block * kBlockRows);
  });
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const RowReport& report = reports[static_cast<std::size_t>(row)];
    if (report.bad_column >= 0) refuse_value(matrix, row, report.bad_column);
    result.error += report.error;
    result.nearest_error += report.nearest_error;
    result.output += report.output;
    result.predicted_loss += report.predicted_loss;
    result.kept_rows += report.kept ? 1 : 0;
  }
  return result;
}

}  // namespace facet::quantizer
