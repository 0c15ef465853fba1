// Launches of the kernels beside cuBLAS and cuSOLVER. Pointers are device memory; matrices are row-major without gaps.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace facet::quantizer::cuda {

// Format and scale choice of a matrix, and its columns.
struct Format {
  std::int32_t columns, groups, group_size;
  std::int32_t bits, symmetric, half_range;
  std::int32_t search;      // false: from the range of the weights
  const float* importance;  // [columns], or null: every error counts the same
};

// Codes with scales and zero codes of some rows.
struct DeviceCodes {
  std::uint8_t* codes;  // [rows, columns]
  float* scales;        // [rows, groups]
  float* zeros;         // [rows, groups], whole numbers
};

// first[0] becomes the smallest index of a value that is not finite; it must be all ones before.
cudaError_t find_bad(const float* values, std::int64_t count, unsigned long long* first, cudaStream_t stream);
cudaError_t find_bad(const __nv_bfloat16* values, std::int64_t count, unsigned long long* first, cudaStream_t stream);
cudaError_t subtract(const float* a, const float* b, std::int64_t count, float* out, cudaStream_t stream);
cudaError_t subtract(const __nv_bfloat16* a, const __nv_bfloat16* b, std::int64_t count, __nv_bfloat16* out,
                     cudaStream_t stream);
// sums += product, in double; only elements [i, j] with j >= i when `upper`.
cudaError_t accumulate(const float* product, std::int32_t n, bool upper, double* sums, cudaStream_t stream);
cudaError_t read_diagonal(const double* sums, std::int32_t n, double scale, double* diagonal, cudaStream_t stream);
// full = scale * sums, whose lower half is not read.
cudaError_t full_hessian(const double* sums, std::int32_t n, double scale, float* full, cudaStream_t stream);
// matrix[i, j] for j <= i: H of the columns at positions n - 1 - i and n - 1 - j, damped.
cudaError_t turned_hessian(const double* sums, std::int32_t n, double scale, const std::int32_t* order,
                           const double* diagonal, double damping, double* matrix, cudaStream_t stream);
// upper[i, j] = matrix[n - 1 - i, n - 1 - j] for j >= i, else 0.
cudaError_t turn_back(const double* matrix, std::int32_t n, float* upper, cudaStream_t stream);
// out[i, p] = scale * sums[i, order[p]], and out[i, order[p]] = in[i, p].
cudaError_t gather_columns(const double* sums, std::int32_t n, double scale, const std::int32_t* order, float* out,
                           cudaStream_t stream);
cudaError_t scatter_columns(const float* in, std::int32_t n, const std::int32_t* order, float* out,
                            cudaStream_t stream);
// out[row, p] = in[row, order[p]]; at most 65,535 rows.
cudaError_t permute_columns(const float* in, std::int64_t rows, std::int32_t n, const std::int32_t* order, float* out,
                            cudaStream_t stream);

// Floats of `count` values; bad[row] becomes the first column that is not finite, or -1.
cudaError_t load_weights(const void* values, bool is_bf16, std::int64_t rows, std::int32_t columns, float* out,
                         std::int32_t* bad, cudaStream_t stream);
cudaError_t round_rows(const float* weights, std::int64_t rows, const Format& format, const DeviceCodes& out,
                       cudaStream_t stream);
// out = weights - value of the codes, or weights when `codes` has none.
cudaError_t difference(const float* weights, std::int64_t rows, const Format& format, const DeviceCodes& codes,
                       float* out, cudaStream_t stream);
// errors[row] = 1/2 sum of a * b, at least 0.
cudaError_t row_errors(const float* a, const float* b, std::int64_t rows, std::int32_t columns, double* errors,
                       cudaStream_t stream);

// Columns at positions [begin, end), at most 128, of rows whose columns are in order: codes, and the error of each
// column by the diagonal of U. Scales are those of `codes` or, in natural order, chosen when a group begins.
struct FeedBack {
  Format format;
  std::int32_t begin, end, natural;
  const std::int32_t* order;
  const float* upper;  // U [columns, columns]
  float* work;         // [rows, columns] by position
  float* errors;       // [rows, 128]
  double* losses;      // [rows], added to
  DeviceCodes codes;
};
cudaError_t feed_back(const FeedBack& job, std::int64_t rows, cudaStream_t stream);

// Coordinate descent over the columns [begin, end) of one group. `change` [rows, end - begin] becomes what the values
// grew by; the gradient is up to date inside of the group afterwards.
struct Refine {
  Format format;
  std::int32_t begin, end;
  const float* hessian;
  float* gradient;  // [rows, columns]
  float* change;
  DeviceCodes codes;
};
cudaError_t refine(const Refine& job, std::int64_t rows, cudaStream_t stream);

// Takes `nearest` for rows where its error is less, and packs codes into words.
struct Finish {
  Format format;
  const double *errors, *nearest_errors;
  DeviceCodes best, nearest;
  std::uint32_t* words;  // [rows, words_per_row]
  std::uint8_t* zeros;   // [rows, groups], or null
  std::int32_t words_per_row;
};
cudaError_t finish(const Finish& job, std::int64_t rows, cudaStream_t stream);

}  // namespace facet::quantizer::cuda
