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

Diagonal::Diagonal(std::vector<double> diagonal, ColumnOrder column_order) : values(std::move(diagonal)) {
  order.resize(values.size());
  std::iota(order.begin(), order.end(), 0);
  if (column_order == ColumnOrder::activation) {
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
    });
  }
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  if (sum > 0) mean = sum / static_cast<double>(values.size());
  for (double& element : values) {
    importance.push_back(static_cast<float>(std::max(element, kLeastImportance * mean) / mean));
    if (element > 0) continue;
    ++dead;
    element = mean;
  }
}

Damped factor_with_damping(const Diagonal& diagonal, double share, const std::function<bool(double)>& attempt) {
  Damped used{share * diagonal.mean, 0};
  while (!attempt(used.damping)) {
    ++used.failures;
    used.damping = std::max(used.damping * 10, diagonal.mean * kFirstDamping);
    if (!(used.damping <= diagonal.mean * kMostDamping)) {
      throw QuantizeError("the Hessian of " + std::to_string(diagonal.values.size()) +
                          " inputs cannot be factored with damping " + std::to_string(used.damping) +
                          ", a million times its mean diagonal");
    }
  }
  return used;
}

GptqInput::GptqInput(const Hessian& hessian, const GptqOptions& options, const Blas& blas, const ParallelFor& parallel)
    : parts_(std::make_unique<Parts>()) {
  Parts& parts = *parts_;
  const std::int64_t n = parts.columns = hessian.columns();
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = hessian.at(i, i);
  Diagonal diagonal(std::move(values), options.order);
  parts.order = std::move(diagonal.order);
  parts.importance = std::move(diagonal.importance);
  parts.dead = diagonal.dead;
  parts.hessian.resize(static_cast<std::size_t>(n * n));
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) parts.hessian[parts.index(i, j)] = static_cast<float>(hessian.at(i, j));
  }
  if (!options.feedback) return;
  const Damped used = factor_with_damping(diagonal, options.damping, [&](double damping) {
    parts.damping = damping;
    return factor(hessian, parts, diagonal.values, blas);
  });
  parts.failures = used.failures;
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
