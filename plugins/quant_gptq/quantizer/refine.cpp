// Coordinate descent after the first pass. For one row with target w and error d = w - q the layer's error is
// 1/2 d H d^T. With the gradient g = d H, moving q_j by t changes it by (t^2 H_jj - 2 t g_j) / 2, so the best code is
// the one nearest to q_j + g_j / H_jj; and with the codes c of a group, the best scale moves by (g c) / (c H c).
#include <algorithm>

#include "row_block.h"

namespace facet::quantizer {
namespace {

// Wider groups keep their scales: their block of H would be as large as the matrix.
constexpr std::int64_t kMostRefinedGroup = 256, kColumns = 128;

// Gradients of a block of rows, and what changed in the columns [begin, end) since they were last exact outside.
struct Descent {
  const RowBlock& block;
  Codes& codes;
  std::vector<float> gradient;  // [rows, columns]
  std::vector<float> change;    // [rows, width]
  std::int64_t begin = 0, end = 0;

  const float* hessian_row(std::int64_t j) const { return block.input.hessian.data() + j * block.cut.columns; }
  // q[row, j] grows by `step`.
  void move(std::int64_t row, std::int64_t j, float step) {
    float* g = gradient.data() + block.at(row, 0);
    const float* h = hessian_row(j);
    for (std::int64_t k = begin; k < end; ++k) g[k] -= step * h[k];
    change[static_cast<std::size_t>(row * (end - begin) + j - begin)] += step;
  }
};

void move_codes(Descent& at, std::int64_t row) {
  const RowBlock& block = at.block;
  for (std::int64_t j = at.begin; j < at.end; ++j) {
    const float curvature = at.hessian_row(j)[j];
    const std::size_t cell = block.cell(row, j / block.cut.group_size);
    const float scale = at.codes.scales[cell], zero = at.codes.zeros[cell];
    if (!(curvature > 0) || scale == 0) continue;
    std::uint8_t& code = at.codes.codes[block.at(row, j)];
    const float value = (static_cast<float>(code) - zero) * scale;
    const std::uint8_t best = block.nearest(value + at.gradient[block.at(row, j)] / curvature, scale, zero);
    if (best == code) continue;
    at.move(row, j, (static_cast<float>(best) - static_cast<float>(code)) * scale);
    code = best;
  }
}

void move_scale(Descent& at, std::int64_t row, std::vector<float>& product) {
  const RowBlock& block = at.block;
  const std::size_t cell = block.cell(row, at.begin / block.cut.group_size);
  float& scale = at.codes.scales[cell];
  const std::uint8_t* codes = at.codes.codes.data() + block.at(row, 0);
  const auto step_of = [&](std::int64_t j) { return static_cast<float>(codes[j]) - at.codes.zeros[cell]; };
  product.assign(static_cast<std::size_t>(at.end - at.begin), 0.0f);
  for (std::int64_t j = at.begin; j < at.end; ++j) {
    const float step = step_of(j), *h = at.hessian_row(j) + at.begin;
    for (std::size_t k = 0; k < product.size(); ++k) product[k] += step * h[k];
  }
  float* gradient = at.gradient.data() + block.at(row, at.begin);
  double curvature = 0, slope = 0;
  for (std::size_t k = 0; k < product.size(); ++k) {
    const double step = step_of(at.begin + static_cast<std::int64_t>(k));
    curvature += step * product[k];
    slope += step * gradient[k];
  }
  if (!(curvature > 0) || scale == 0) return;
  const float best = round_scale(scale + slope / curvature);
  const double moved = static_cast<double>(best) - scale;
  // A group of almost nothing stays almost nothing: it does not become a place to put the errors of others.
  if (!(best >= scale / 2 && best <= scale * 2) || !(moved * moved * curvature - 2 * moved * slope < 0)) return;
  scale = best;
  float* change = at.change.data() + row * (at.end - at.begin);
  for (std::size_t k = 0; k < product.size(); ++k) {
    gradient[k] -= static_cast<float>(moved) * product[k];
    change[k] += static_cast<float>(moved) * step_of(at.begin + static_cast<std::int64_t>(k));
  }
}

// Brings the gradient outside of [begin, end) up to date.
void spread(Descent& at) {
  const std::int64_t n = at.block.cut.columns, width = at.end - at.begin;
  const Blas::In change{at.change.data(), width};
  at.block.blas.subtract_product(at.block.rows, at.begin, width, change, {at.hessian_row(at.begin), n},
                                 {at.gradient.data(), n});
  at.block.blas.subtract_product(at.block.rows, n - at.end, width, change, {at.hessian_row(at.begin) + at.end, n},
                                 {at.gradient.data() + at.end, n});
}

}  // namespace

void refine(const RowBlock& block, Codes& codes) {
  const Cut& cut = block.cut;
  const std::int64_t n = cut.columns;
  const bool whole_groups = cut.group_size <= kMostRefinedGroup;
  const std::int64_t width = whole_groups ? cut.group_size : kColumns;
  Descent at{block, codes, std::vector<float>(block.weights.size()), {}};
  std::vector<float> difference = block.weights, product;
  for (std::int64_t row = 0; row < block.rows; ++row) {
    for (std::int64_t column = 0; column < n; ++column)
      difference[block.at(row, column)] -= block.value(codes, row, column);
  }
  block.blas.multiply(block.rows, n, n, {difference.data(), n}, {block.input.hessian.data(), n},
                      {at.gradient.data(), n});
  for (int round = 0; round < block.options.refinements; ++round) {
    for (at.begin = 0; at.begin < n; at.begin = at.end) {
      at.end = std::min(at.begin + width, n);
      at.change.assign(static_cast<std::size_t>(block.rows * (at.end - at.begin)), 0.0f);
      for (std::int64_t row = 0; row < block.rows; ++row) {
        move_codes(at, row);
        if (whole_groups) move_scale(at, row, product);
      }
      spread(at);
    }
  }
}

}  // namespace facet::quantizer
