// Second moments of a linear layer's inputs, which say what an error in each weight costs.
#pragma once

#include <cstdint>
#include <vector>

#include "facet/quantizer/blas.h"
#include "facet/quantizer/rtn.h"

namespace facet::quantizer {

// A calibration input that is NaN or infinite.
class InputError : public QuantizeError {
 public:
  InputError(std::int64_t row, std::int64_t column)
      : QuantizeError("row " + std::to_string(row) + ", input " + std::to_string(column) + " is NaN or infinite"),
        row_(row),
        column_(column) {}
  std::int64_t row() const { return row_; }  // of the call that refused it
  std::int64_t column() const { return column_; }

 private:
  std::int64_t row_, column_;
};

// H = 2/N X^T X over all N rows that were added, in double; shared by all layers that read the same input. With
// `with_original` also C = 2/N (X' - X)^T X, where X' holds the inputs of the same tokens in the original model.
class Hessian {
 public:
  explicit Hessian(std::int64_t columns, bool with_original = false);

  // Adds `count` rows x [count, columns] without gaps, and their originals when the object was made for them. Products
  // are in float over the rows of one call and added up in double: call with some thousand rows at most. The result
  // depends on the order of calls and not on `parallel`. Throws InputError for the first value that is NaN or
  // infinite; nothing is added then.
  void add(const float* x, std::int64_t count, const Blas& blas, const ParallelFor& parallel = {},
           const float* original = nullptr);

  std::int64_t columns() const { return columns_; }
  std::int64_t rows() const { return rows_; }
  bool has_original() const { return !cross_.empty(); }
  // Element of H or C; 0 before any row was added.
  double at(std::int64_t i, std::int64_t j) const { return scaled(i <= j ? sums_[index(i, j)] : sums_[index(j, i)]); }
  double cross_at(std::int64_t i, std::int64_t j) const { return scaled(cross_[index(i, j)]); }
  std::uint64_t bytes() const { return (sums_.size() + cross_.size()) * sizeof(double); }
  static std::uint64_t bytes(std::int64_t columns, bool with_original);

 private:
  std::size_t index(std::int64_t i, std::int64_t j) const { return static_cast<std::size_t>(i * columns_ + j); }
  double scaled(double sum) const { return rows_ == 0 ? 0.0 : 2.0 * sum / static_cast<double>(rows_); }

  std::int64_t columns_;
  std::int64_t rows_ = 0;
  std::vector<double> sums_;   // [columns, columns], upper triangle
  std::vector<double> cross_;  // [columns, columns]: (x' - x)_i x_j
};

}  // namespace facet::quantizer
