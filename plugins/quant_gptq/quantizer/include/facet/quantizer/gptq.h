// GPTQ: rounds a matrix column by column and moves each column's rounding error into the columns that are still exact,
// so that the layer's outputs on calibration inputs stay close. Frantar et al., arXiv 2210.17323.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "facet/quantizer/blas.h"
#include "facet/quantizer/hessian.h"
#include "facet/quantizer/rtn.h"

namespace facet::quantizer {

// How the scale (and zero point) of a group is chosen.
//   largest: from the range of its weights.
//   search:  least squared error among shrunk and slightly widened ranges, then refitted to the codes.
//   hessian: the same search, each input's error weighted by its diagonal element of H.
enum class ScaleChoice { largest, search, hessian };

// natural:    columns in their own order; a group's scale is chosen when its first column is reached, from weights that
//             already carry the errors of earlier columns.
// activation: columns with large diagonal elements first; scales are chosen from the original weights before, so that
//             groups stay where they are and nothing is looked up by index at run time.
enum class ColumnOrder { natural, activation };

struct GptqOptions {
  int bits = 4;
  bool symmetric = true;
  std::int64_t group_size = 128;  // -1: the whole row
  SymmetricRange range = SymmetricRange::full;
  ScaleChoice scales = ScaleChoice::hessian;
  ColumnOrder order = ColumnOrder::activation;
  bool feedback = true;   // false: round to nearest, for the same report and weighted scales
  double damping = 0.01;  // share of the mean diagonal element that is added to the diagonal
  // Rounds of coordinate descent after the first pass: each code moves to where the layer's error is least given all
  // others, then each scale does. The error never rises. Groups must not be wider than kMostRefinedGroup.
  int refinements = 0;
  // With a Hessian that knows the original inputs: share of the error of earlier layers that this one makes up for.
  double correction = 0;
};

// What is shared by all matrices that read the same input: the damped, ordered, factored Hessian.
class GptqInput {
 public:
  // Adds damping; where the factorisation fails, ten times as much, again and again. Columns that are always 0 (dead)
  // are detached: their weights round to nearest. Throws QuantizeError when no damping up to 10^6 times the mean helps.
  GptqInput(const Hessian& hessian, const GptqOptions& options, const Blas& blas, const ParallelFor& parallel = {});
  ~GptqInput();

  std::int64_t columns() const;
  std::int64_t dead_columns() const;
  double damping() const;  // that was used
  int failures() const;    // factorisations that failed before it

  // Peak bytes of one object while it is made, the Hessian itself not counted.
  static std::uint64_t bytes(std::int64_t columns, bool with_original);

  struct Parts;
  const Parts& parts() const { return *parts_; }

 private:
  std::unique_ptr<Parts> parts_;
};

struct GptqResult {
  Quantized quantized;
  // Sums of squares of output errors a calibration row, over all outputs: 1/2 tr((W - Q) H (W - Q)^T).
  double error = 0;            // of the result
  double nearest_error = 0;    // of round to nearest with the same scale choice
  double output = 0;           // 1/2 tr(W H W^T): what the errors compare to
  double predicted_loss = 0;   // the algorithm's own sum over columns, damping included, before refinement
  std::int64_t kept_rows = 0;  // rows where round to nearest was better and was kept
};

// Quantizes one matrix. Result codes obey the rules of Quantized; they do not depend on how `parallel` splits the work.
// For every row the error is at most that of round to nearest. Throws QuantizeError as quantize_rtn does, and when the
// matrix has another width than the input.
GptqResult quantize_gptq(const Matrix& matrix, const GptqInput& input, const GptqOptions& options, const Blas& blas,
                         const ParallelFor& parallel = {});

}  // namespace facet::quantizer
