// Sums of products in double and the matrices made from them.
#include "kernels.h"

namespace facet::quantizer::cuda {
namespace {

constexpr int kThreads = 256;

dim3 square(std::int32_t n) {
  return {static_cast<unsigned>((n + kThreads - 1) / kThreads), static_cast<unsigned>(n)};
}

__device__ int column_here() {
  return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

__device__ std::int64_t at(int n, int row, int column) {
  return static_cast<std::int64_t>(row) * n + column;
}

// Element of the symmetric matrix whose upper half is stored.
__device__ double symmetric(const double* sums, int n, int i, int j) {
  return i <= j ? sums[at(n, i, j)] : sums[at(n, j, i)];
}

__device__ float as_float(float value) {
  return value;
}
__device__ float as_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ void store(float value, float* out) {
  *out = value;
}
__device__ void store(float value, __nv_bfloat16* out) {
  *out = __float2bfloat16(value);
}

template <typename T>
__global__ void find_bad_kernel(const T* values, std::int64_t count, unsigned long long* first) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    if (!isfinite(as_float(values[i]))) atomicMin(first, static_cast<unsigned long long>(i));
  }
}

template <typename T>
__global__ void subtract_kernel(const T* a, const T* b, std::int64_t count, T* out) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    store(as_float(a[i]) - as_float(b[i]), out + i);
}

__global__ void accumulate_kernel(const float* product, int n, int upper, double* sums) {
  const int i = static_cast<int>(blockIdx.y), j = column_here();
  if (j >= n || (upper != 0 && j < i)) return;
  sums[at(n, i, j)] += static_cast<double>(product[at(n, i, j)]);
}

__global__ void read_diagonal_kernel(const double* sums, int n, double scale, double* diagonal) {
  const int j = column_here();
  if (j < n) diagonal[j] = scale * sums[at(n, j, j)];
}

__global__ void full_hessian_kernel(const double* sums, int n, double scale, float* full) {
  const int i = static_cast<int>(blockIdx.y), j = column_here();
  if (j < n) full[at(n, i, j)] = static_cast<float>(scale * symmetric(sums, n, i, j));
}

__global__ void turned_hessian_kernel(const double* sums, int n, double scale, const std::int32_t* order,
                                      const double* diagonal, double damping, double* matrix) {
  const int i = static_cast<int>(blockIdx.y), j = column_here();
  if (j > i) return;
  const int a = order[n - 1 - i], b = order[n - 1 - j];
  matrix[at(n, i, j)] = i == j ? diagonal[a] + damping : scale * symmetric(sums, n, a, b);
}

__global__ void turn_back_kernel(const double* matrix, int n, float* upper) {
  const int i = static_cast<int>(blockIdx.y), j = column_here();
  if (j < n) upper[at(n, i, j)] = j >= i ? static_cast<float>(matrix[at(n, n - 1 - i, n - 1 - j)]) : 0.0f;
}

__global__ void gather_columns_kernel(const double* sums, int n, double scale, const std::int32_t* order, float* out) {
  const int i = static_cast<int>(blockIdx.y), p = column_here();
  if (p < n) out[at(n, i, p)] = static_cast<float>(scale * sums[at(n, i, order[p])]);
}

__global__ void scatter_columns_kernel(const float* in, int n, const std::int32_t* order, float* out) {
  const int i = static_cast<int>(blockIdx.y), p = column_here();
  if (p < n) out[at(n, i, order[p])] = in[at(n, i, p)];
}

__global__ void permute_columns_kernel(const float* in, int n, const std::int32_t* order, float* out) {
  const int i = static_cast<int>(blockIdx.y), p = column_here();
  if (p < n) out[at(n, i, p)] = in[at(n, i, order[p])];
}

constexpr int kFlatBlocks = 4096;

}  // namespace

cudaError_t find_bad(const float* values, std::int64_t count, unsigned long long* first, cudaStream_t stream) {
  find_bad_kernel<<<kFlatBlocks, kThreads, 0, stream>>>(values, count, first);
  return cudaGetLastError();
}

cudaError_t find_bad(const __nv_bfloat16* values, std::int64_t count, unsigned long long* first, cudaStream_t stream) {
  find_bad_kernel<<<kFlatBlocks, kThreads, 0, stream>>>(values, count, first);
  return cudaGetLastError();
}

cudaError_t subtract(const float* a, const float* b, std::int64_t count, float* out, cudaStream_t stream) {
  subtract_kernel<<<kFlatBlocks, kThreads, 0, stream>>>(a, b, count, out);
  return cudaGetLastError();
}

cudaError_t subtract(const __nv_bfloat16* a, const __nv_bfloat16* b, std::int64_t count, __nv_bfloat16* out,
                     cudaStream_t stream) {
  subtract_kernel<<<kFlatBlocks, kThreads, 0, stream>>>(a, b, count, out);
  return cudaGetLastError();
}

cudaError_t accumulate(const float* product, std::int32_t n, bool upper, double* sums, cudaStream_t stream) {
  accumulate_kernel<<<square(n), kThreads, 0, stream>>>(product, n, upper ? 1 : 0, sums);
  return cudaGetLastError();
}

cudaError_t read_diagonal(const double* sums, std::int32_t n, double scale, double* diagonal, cudaStream_t stream) {
  read_diagonal_kernel<<<(n + kThreads - 1) / kThreads, kThreads, 0, stream>>>(sums, n, scale, diagonal);
  return cudaGetLastError();
}

cudaError_t full_hessian(const double* sums, std::int32_t n, double scale, float* full, cudaStream_t stream) {
  full_hessian_kernel<<<square(n), kThreads, 0, stream>>>(sums, n, scale, full);
  return cudaGetLastError();
}

cudaError_t turned_hessian(const double* sums, std::int32_t n, double scale, const std::int32_t* order,
                           const double* diagonal, double damping, double* matrix, cudaStream_t stream) {
  turned_hessian_kernel<<<square(n), kThreads, 0, stream>>>(sums, n, scale, order, diagonal, damping, matrix);
  return cudaGetLastError();
}

cudaError_t turn_back(const double* matrix, std::int32_t n, float* upper, cudaStream_t stream) {
  turn_back_kernel<<<square(n), kThreads, 0, stream>>>(matrix, n, upper);
  return cudaGetLastError();
}

cudaError_t gather_columns(const double* sums, std::int32_t n, double scale, const std::int32_t* order, float* out,
                           cudaStream_t stream) {
  gather_columns_kernel<<<square(n), kThreads, 0, stream>>>(sums, n, scale, order, out);
  return cudaGetLastError();
}

cudaError_t scatter_columns(const float* in, std::int32_t n, const std::int32_t* order, float* out,
                            cudaStream_t stream) {
  scatter_columns_kernel<<<square(n), kThreads, 0, stream>>>(in, n, order, out);
  return cudaGetLastError();
}

cudaError_t permute_columns(const float* in, std::int64_t rows, std::int32_t n, const std::int32_t* order, float* out,
                            cudaStream_t stream) {
  dim3 grid = square(n);
  grid.y = static_cast<unsigned>(rows);
  permute_columns_kernel<<<grid, kThreads, 0, stream>>>(in, n, order, out);
  return cudaGetLastError();
}

}  // namespace facet::quantizer::cuda
