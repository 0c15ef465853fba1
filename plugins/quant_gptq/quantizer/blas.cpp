#include "facet/quantizer/blas.h"

#include <cblas.h>
#include <lapacke.h>

#include <chrono>

namespace facet::quantizer {
namespace {

int extent(std::int64_t value) {
  return static_cast<int>(value);
}

}  // namespace

// Takes its turn where calls must come one at a time, and measures the call.
class Blas::Timer {
 public:
  explicit Timer(const Blas& blas)
      : sum_(blas.nanoseconds_),
        turn_(blas.one_at_a_time_ ? std::unique_lock(blas.mutex_) : std::unique_lock<std::mutex>()),
        start_(std::chrono::steady_clock::now()) {}
  ~Timer() {
    const auto elapsed = std::chrono::steady_clock::now() - start_;
    sum_.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count(), std::memory_order_relaxed);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  std::atomic<std::int64_t>& sum_;
  std::unique_lock<std::mutex> turn_;
  std::chrono::steady_clock::time_point start_;
};

Blas::Blas() : one_at_a_time_(openblas_get_parallel() != OPENBLAS_THREAD) {
  openblas_set_num_threads(1);
}

void Blas::multiply(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const {
  const Timer timer(*this);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, extent(m), extent(n), extent(k), 1.0f, a.values,
              extent(a.stride), b.values, extent(b.stride), 0.0f, out.values, extent(out.stride));
}

void Blas::multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const {
  const Timer timer(*this);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, extent(m), extent(n), extent(k), 1.0f, a.values,
              extent(a.stride), b.values, extent(b.stride), 0.0f, out.values, extent(out.stride));
}

void Blas::multiply_from_columns(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const {
  const Timer timer(*this);
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, extent(m), extent(n), extent(k), 1.0f, a.values,
              extent(a.stride), b.values, extent(b.stride), 0.0f, out.values, extent(out.stride));
}

void Blas::subtract_product(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const {
  const Timer timer(*this);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, extent(m), extent(n), extent(k), -1.0f, a.values,
              extent(a.stride), b.values, extent(b.stride), 1.0f, out.values, extent(out.stride));
}

// LAPACK is column-major: its upper triangle is the lower one of rows, and M M^T of rows is U^T U of columns.
bool Blas::cholesky(std::int64_t n, double* matrix) const {
  const Timer timer(*this);
  return LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', extent(n), matrix, extent(n)) == 0;
}

void Blas::invert_lower(std::int64_t n, double* matrix) const {
  const Timer timer(*this);
  LAPACKE_dtrtri_work(LAPACK_COL_MAJOR, 'U', 'N', extent(n), matrix, extent(n));
}

}  // namespace facet::quantizer
