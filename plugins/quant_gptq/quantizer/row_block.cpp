#include "row_block.h"

#include <algorithm>

namespace facet::quantizer {
namespace {

// Columns whose errors are gathered before they reach the rest of the matrix in one product.
constexpr std::int64_t kColumns = 128;

}  // namespace

void RowBlock::choose(const float* values, std::int64_t row, std::int64_t group, Codes& codes) const {
  const RtnOptions rtn{cut.bits, options.symmetric, cut.group_size, options.range,
                       options.scales != ScaleChoice::largest};
  const float* importance =
      options.scales == ScaleChoice::hessian ? input.importance.data() + cut.group_begin(group) : nullptr;
  const GroupScale chosen = choose_scale(values, importance, cut.group_width(group), rtn);
  codes.scales[cell(row, group)] = chosen.scale;
  codes.zeros[cell(row, group)] = static_cast<float>(chosen.zero);
}

Codes round_rows(const RowBlock& block) {
  const Cut& cut = block.cut;
  Codes codes(cut, block.rows);
  for (std::int64_t row = 0; row < block.rows; ++row) {
    for (std::int64_t group = 0; group < cut.groups; ++group)
      block.choose(block.weights.data() + block.at(row, cut.group_begin(group)), row, group, codes);
    for (std::int64_t column = 0; column < cut.columns; ++column) {
      const std::size_t cell = block.cell(row, column / cut.group_size);
      codes.codes[block.at(row, column)] =
          block.nearest(block.weights[block.at(row, column)], codes.scales[cell], codes.zeros[cell]);
    }
  }
  return codes;
}

Codes feed_back(const RowBlock& block, const Codes& fixed, double* losses) {
  const Cut& cut = block.cut;
  const GptqInput::Parts& input = block.input;
  const bool natural = block.options.order == ColumnOrder::natural;
  const std::int64_t n = cut.columns;
  Codes codes = fixed;
  std::vector<float> work(block.weights.size());  // columns by position
  for (std::int64_t row = 0; row < block.rows; ++row) {
    for (std::int64_t p = 0; p < n; ++p)
      work[block.at(row, p)] = block.weights[block.at(row, input.order[static_cast<std::size_t>(p)])];
  }
  std::vector<float> errors(static_cast<std::size_t>(block.rows * kColumns));
  for (std::int64_t begin = 0; begin < n; begin += kColumns) {
    const std::int64_t end = std::min(begin + kColumns, n);
    for (std::int64_t row = 0; row < block.rows; ++row) {
      float* w = work.data() + row * n;
      for (std::int64_t p = begin; p < end; ++p) {
        const std::int64_t column = input.order[static_cast<std::size_t>(p)], group = column / cut.group_size;
        if (natural && column == cut.group_begin(group)) block.choose(w + p, row, group, codes);
        const std::size_t cell = block.cell(row, group);
        codes.codes[block.at(row, column)] = block.nearest(w[p], codes.scales[cell], codes.zeros[cell]);
        const float* spread = input.upper.data() + p * n;
        const float error = (w[p] - block.value(codes, row, column)) / spread[p];
        losses[row] += 0.5 * static_cast<double>(error) * static_cast<double>(error);
        errors[static_cast<std::size_t>(row * kColumns + p - begin)] = error;
        for (std::int64_t later = p + 1; later < end; ++later) w[later] -= error * spread[later];
      }
    }
    if (end == n) break;
    block.blas.subtract_product(block.rows, n - end, end - begin, {errors.data(), kColumns},
                                {input.upper.data() + begin * n + end, n}, {work.data() + end, n});
  }
  return codes;
}

std::vector<double> row_errors(const RowBlock& block, const Codes* codes) {
  const std::int64_t n = block.cut.columns;
  std::vector<float> difference = block.weights, product(difference.size());
  if (codes != nullptr) {
    for (std::int64_t row = 0; row < block.rows; ++row) {
      for (std::int64_t column = 0; column < n; ++column)
        difference[block.at(row, column)] -= block.value(*codes, row, column);
    }
  }
  block.blas.multiply(block.rows, n, n, {difference.data(), n}, {block.input.hessian.data(), n}, {product.data(), n});
  std::vector<double> errors(static_cast<std::size_t>(block.rows), 0.0);
  for (std::int64_t row = 0; row < block.rows; ++row) {
    double sum = 0;
    for (std::int64_t column = 0; column < n; ++column)
      sum += static_cast<double>(difference[block.at(row, column)]) * product[block.at(row, column)];
    errors[static_cast<std::size_t>(row)] = 0.5 * std::max(sum, 0.0);
  }
  return errors;
}

}  // namespace facet::quantizer
