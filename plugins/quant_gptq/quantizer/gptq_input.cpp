#include "gptq_input.h"

#include <algorithm>
#include <numeric>

#include "parallel.h"

namespace facet::quantizer {
namespace {

// An input that hardly moved in calibration may move in use: its weights never count less than this share of the mean.
constexpr double kLeastImportance = 1e-3;
// Where a failed factorisation goes from no damping at all, and how far damping may rise, as shares of the mean.
constexpr double kFirstDamping = 1e-6, kMostDamping = 1e6;
constexpr std::int64_t kRows = 64;

std::vector<std::int64_t> order_of(const std::vector<double>& diagonal, ColumnOrder order) {
  std::vector<std::int64_t> columns(diagonal.size());
  std::iota(columns.begin(), columns.end(), 0);
  if (order == ColumnOrder::activation) {
    std::stable_sort(columns.begin(), columns.end(), [&](std::int64_t a, std::int64_t b) {
      return diagonal[static_cast<std::size_t>(a)] > diagonal[static_cast<std::size_t>(b)];
    });
  }
  return columns;
}

// With R upper and H = R R^T the inverse is U^T U for U = R^-1. Turned by half a turn R is a lower Cholesky factor, so
// one factorisation and one triangular inverse give U, and H is never inverted.
bool factor(const Hessian& hessian, GptqInput::Parts& parts, const std::vector<double>& diagonal, const Blas& blas) {
  const std::int64_t n = parts.columns;
  const auto column = [&](std::int64_t i) { return parts.order[static_cast<std::size_t>(n - 1 - i)]; };
  std::vector<double> matrix(static_cast<std::size_t>(n * n));
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < i; ++j) matrix[parts.index(i, j)] = hessian.at(column(i), column(j));
    matrix[parts.index(i, i)] = diagonal[static_cast<std::size_t>(column(i))] + parts.damping;
  }
  if (!blas.cholesky(n, matrix.data())) return false;
  blas.invert_lower(n, matrix.data());
  parts.upper.assign(static_cast<std::size_t>(n * n), 0.0f);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = i; j < n; ++j)
      parts.upper[parts.index(i, j)] = static_cast<float>(matrix[parts.index(n - 1 - i, n - 1 - j)]);
  }
  return true;
}

void factor_with_damping(const Hessian& hessian, GptqInput::Parts& parts, const std::vector<double>& diagonal,
                         double mean, const Blas& blas) {
  while (!factor(hessian, parts, diagonal, blas)) {
    ++parts.failures;
    parts.damping = std::max(parts.damping * 10, mean * kFirstDamping);
    if (!(parts.damping <= mean * kMostDamping)) {
      throw QuantizeError("the Hessian of " + std::to_string(parts.columns) +
                          " inputs cannot be factored with damping " + std::to_string(parts.damping) +
                          ", a million times its mean diagonal");
    }
  }
}

// C (H + damping)^-1 = C U^T U, in the order of columns.
void correct(const Hessian& hessian, GptqInput::Parts& parts, const Blas& blas, const ParallelFor& parallel) {
  const std::int64_t n = parts.columns;
  parts.correction.resize(static_cast<std::size_t>(n * n));
  run(parallel, (n + kRows - 1) / kRows, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> cross(static_cast<std::size_t>(kRows * n)), product(cross.size());
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t first = piece * kRows, count = std::min(kRows, n - first);
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          cross[parts.index(i, j)] =
              static_cast<float>(hessian.cross_at(first + i, parts.order[static_cast<std::size_t>(j)]));
        }
      }
      blas.multiply_transposed(count, n, n, {cross.data(), n}, {parts.upper.data(), n}, {product.data(), n});
      blas.multiply(count, n, n, {product.data(), n}, {parts.upper.data(), n}, {cross.data(), n});
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t j = 0; j < n; ++j)
          parts.correction[parts.index(first + i, parts.order[static_cast<std::size_t>(j)])] = cross[parts.index(i, j)];
      }
    }
  });
}

}  // namespace

GptqInput::GptqInput(const Hessian& hessian, const GptqOptions& options, const Blas& blas, const ParallelFor& parallel)
    : parts_(std::make_unique<Parts>()) {
  Parts& parts = *parts_;
  const std::int64_t n = parts.columns = hessian.columns();
  std::vector<double> diagonal(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) diagonal[static_cast<std::size_t>(i)] = hessian.at(i, i);
  const double sum = std::accumulate(diagonal.begin(), diagonal.end(), 0.0);
  const double mean = sum > 0 ? sum / static_cast<double>(n) : 1.0;
  parts.order = order_of(diagonal, options.order);
  for (double& element : diagonal) {
    parts.importance.push_back(static_cast<float>(std::max(element, kLeastImportance * mean) / mean));
    if (element > 0) continue;
    ++parts.dead;
    element = mean;
  }
  parts.hessian.resize(static_cast<std::size_t>(n * n));
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) parts.hessian[parts.index(i, j)] = static_cast<float>(hessian.at(i, j));
  }
  if (!options.feedback) return;
  parts.damping = options.damping * mean;
  factor_with_damping(hessian, parts, diagonal, mean, blas);
  if (options.correction != 0 && hessian.has_original()) correct(hessian, parts, blas, parallel);
}

GptqInput::~GptqInput() = default;

std::int64_t GptqInput::columns() const {
  return parts_->columns;
}
std::int64_t GptqInput::dead_columns() const {
  return parts_->dead;
}
double GptqInput::damping() const {
  return parts_->damping;
}
int GptqInput::failures() const {
  return parts_->failures;
}

std::uint64_t GptqInput::bytes(std::int64_t columns, bool with_original) {
  // H and U in float, the factor in double; the correction in float.
  const auto cells = static_cast<std::uint64_t>(columns) * static_cast<std::uint64_t>(columns);
  return cells * (2 * sizeof(float) + sizeof(double) + (with_original ? sizeof(float) : 0));
}

}  // namespace facet::quantizer
