// One device: its streams, handles, memory, and the clock of its matrix products.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "device_api.h"
#include "libraries.h"

namespace facet::quantizer::cuda {

// Never leaves the library.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void check(cudaError_t status, const char* what);
void check(cublasStatus_t status, const char* what);
void check(cusolverStatus_t status, const char* what);

class Session {
 public:
  explicit Session(int ordinal);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  cudaStream_t stream() const { return stream_; }
  // Uploads of inputs, beside the products.
  cudaStream_t copies() const { return copies_; }
  // Pinned host memory, `which` 0 or 1, of at least so many bytes; contents are lost when it grows.
  void* pinned(std::size_t which, std::uint64_t bytes);

  struct In {
    const float* values;
    std::int64_t stride;
  };
  struct Out {
    float* values;
    std::int64_t stride;
  };
  // Row-major, as in blas.h. out [m, n] = a [m, k] * b [k, n] * factor + out * keep
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out, float factor = 1, float keep = 0);
  // out [m, n] = a [m, k] * b [n, k]^T
  void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out);
  // out [m, n] = a [k, m]^T * b [k, n]
  void multiply_from_columns(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out);
  // The upper half of out [n, n] = a [k, n]^T a.
  void square(std::int64_t n, std::int64_t k, const float* a, float* out);
  // The same two products of bf16 matrices [k, n] without gaps, sums in float, out without gaps.
  void square(std::int64_t n, std::int64_t k, const __nv_bfloat16* a, float* out);
  void multiply_from_columns(std::int64_t n, std::int64_t k, const __nv_bfloat16* a, const __nv_bfloat16* b,
                             float* out);
  // The lower half of `matrix` becomes the inverse of its Cholesky factor. False: not positive definite.
  bool invert_factor(std::int64_t n, double* matrix);

  double blas_seconds();

 private:
  // Measures the calls between its construction and destruction on the stream.
  class Timed {
   public:
    explicit Timed(Session& session);
    ~Timed();

   private:
    Session& session_;
    std::array<cudaEvent_t, 2> events_{};
  };
  // Rows [first, first + rows) and columns from `first_column` on of out [n, n] = a [k, n]^T b.
  void multiply_strip(std::int64_t n, std::int64_t k, std::int64_t first, std::int64_t first_column, std::int64_t rows,
                      const __nv_bfloat16* a, const __nv_bfloat16* b, float* out);
  std::array<cudaEvent_t, 2> take_events();
  void collect();

  cudaStream_t stream_ = nullptr, copies_ = nullptr;
  cublasHandle_t blas_ = nullptr;
  cusolverDnHandle_t solver_ = nullptr;
  cusolverDnParams_t params_ = nullptr;
  struct Pinned {
    void* data = nullptr;
    std::uint64_t bytes = 0;
  };
  std::array<Pinned, 2> pinned_;
  std::vector<std::array<cudaEvent_t, 2>> running_, free_;
  double seconds_ = 0;
};

// Device memory that follows the order of the stream.
template <typename T>
class Array {
 public:
  Array() = default;
  Array(Session& session, std::int64_t count) : stream_(session.stream()) {
    check(cudaMallocAsync(reinterpret_cast<void**>(&data_), static_cast<std::size_t>(count) * sizeof(T), stream_),
          "device memory");
  }
  ~Array() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }
  Array(Array&& other) noexcept : stream_(other.stream_), data_(other.data_) { other.data_ = nullptr; }
  Array& operator=(Array&& other) noexcept {
    std::swap(stream_, other.stream_);
    std::swap(data_, other.data_);
    return *this;
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* get() const { return data_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  cudaStream_t stream_ = nullptr;
  T* data_ = nullptr;
};

// Runs `body` and turns what it throws into an outcome.
template <typename Body>
Outcome guarded(Problem* problem, const Body& body) noexcept {
  std::string text;
  try {
    return body();
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = "unknown failure";
  }
  const std::size_t length = text.copy(problem->text, sizeof problem->text - 1);
  problem->text[length] = '\0';
  return Outcome::failed;
}

}  // namespace facet::quantizer::cuda
