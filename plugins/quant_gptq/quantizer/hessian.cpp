#include "facet/quantizer/hessian.h"

#include <algorithm>
#include <cmath>

#include "parallel.h"

namespace facet::quantizer {
namespace {

// Columns of the result that one piece of work fills. The split is fixed, so that sums do not depend on threads.
constexpr std::int64_t kTile = 128;

void check_finite(const float* x, std::int64_t count, std::int64_t columns) {
  for (std::int64_t i = 0; i < count * columns; ++i) {
    if (!std::isfinite(x[i])) throw InputError(i / columns, i % columns);
  }
}

}  // namespace

Hessian::Hessian(std::int64_t columns, bool with_original)
    : columns_(columns), sums_(static_cast<std::size_t>(columns * columns), 0.0) {
  if (with_original) cross_.assign(sums_.size(), 0.0);
}

std::uint64_t Hessian::bytes(std::int64_t columns, bool with_original) {
  return static_cast<std::uint64_t>(columns) * static_cast<std::uint64_t>(columns) * sizeof(double) *
         (with_original ? 2 : 1);
}

void Hessian::add(const float* x, std::int64_t count, const Blas& blas, const ParallelFor& parallel,
                  const float* original) {
  check_finite(x, count, columns_);
  std::vector<float> change;
  if (has_original()) {
    check_finite(original, count, columns_);
    change.resize(static_cast<std::size_t>(count * columns_));
    for (std::size_t i = 0; i < change.size(); ++i) change[i] = original[i] - x[i];
  }
  const std::int64_t tiles = (columns_ + kTile - 1) / kTile;
  const auto accumulate = [&](const float* left, std::int64_t from, std::int64_t width, std::int64_t height,
                              std::vector<double>& sums, std::vector<float>& product) {
    product.resize(static_cast<std::size_t>(height * width));
    blas.multiply_from_columns(height, width, count, {left, columns_}, {x + from, columns_}, {product.data(), width});
    for (std::int64_t i = 0; i < height; ++i) {
      for (std::int64_t j = 0; j < width; ++j)
        sums[index(i, from + j)] += static_cast<double>(product[static_cast<std::size_t>(i * width + j)]);
    }
  };
  run(parallel, tiles, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> product;
    for (std::int64_t piece = begin; piece < end; ++piece) {
      // A tile on the right has more rows of the triangle: short and long ones alternate, so that halves weigh the
      // same.
      const std::int64_t tile = piece % 2 == 0 ? piece / 2 : tiles - 1 - piece / 2;
      const std::int64_t from = tile * kTile, width = std::min(kTile, columns_ - from);
      accumulate(x, from, width, from + width, sums_, product);
      if (has_original()) accumulate(change.data(), from, width, columns_, cross_, product);
    }
  });
  rows_ += count;
}

}  // namespace facet::quantizer
