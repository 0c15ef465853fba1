// The few BLAS and LAPACK calls of the quantizer, with a clock: callers share their work out over threads, so every
// call here stays on its own thread and gives the same bits whatever the number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace facet::quantizer {

class Blas {
 public:
  // Tells the BLAS to stay on the calling thread. Only OpenBLAS with POSIX threads may then be called from several
  // threads at once: the serial build shares its buffers without a lock, and the OpenMP build starts threads of its own
  // on each of them. With those, calls come one at a time: slower, and as right.
  Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // A matrix as it lies in memory: row r begins at values + r * stride.
  struct In {
    const float* values;
    std::int64_t stride;
  };
  struct Out {
    float* values;
    std::int64_t stride;
  };

  // out [m, n] = a [m, k] * b [k, n]
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const;
  // out [m, n] = a [m, k] * b [n, k]^T
  void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const;
  // out [m, n] = a [k, m]^T * b [k, n]
  void multiply_from_columns(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const;
  // out [m, n] -= a [m, k] * b [k, n]
  void subtract_product(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const;
  // The lower triangle of `matrix` [n, n], row-major, becomes M with M M^T = matrix. False when the matrix is not
  // positive definite; it is overwritten then, too. The upper triangle is neither read nor written.
  bool cholesky(std::int64_t n, double* matrix) const;
  // The lower triangle becomes its inverse.
  void invert_lower(std::int64_t n, double* matrix) const;

  // Time inside these calls, added up over threads.
  std::int64_t nanoseconds() const { return nanoseconds_.load(std::memory_order_relaxed); }

 private:
  class Timer;
  bool one_at_a_time_;
  mutable std::mutex mutex_;
  mutable std::atomic<std::int64_t> nanoseconds_{0};
};

}  // namespace facet::quantizer
