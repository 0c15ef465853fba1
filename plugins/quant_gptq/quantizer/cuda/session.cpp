#include "session.h"

#include <algorithm>

namespace facet::quantizer::cuda {
namespace {

// Pairs of events in flight before their times are read.
constexpr std::size_t kMostEvents = 512;

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Failure(std::string(what) + ": " + cudaGetErrorString(status));
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) throw Failure(std::string(what) + ": " + libraries().blas_text(status));
}

void check(cusolverStatus_t status, const char* what) {
  if (status != CUSOLVER_STATUS_SUCCESS)
    throw Failure(std::string(what) + ": cuSOLVER status " + std::to_string(static_cast<int>(status)));
}

Session::Session(int ordinal) {
  check(cudaSetDevice(ordinal), "cudaSetDevice");
  if (!libraries().error.empty()) throw Failure(libraries().error);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "cudaStreamCreate");
  // Freed memory stays with the program: the next layer takes the same sizes.
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, ordinal), "cudaDeviceGetDefaultMemPool");
  std::uint64_t all = ~std::uint64_t{0};
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "cudaMemPoolSetAttribute");
  const Libraries& library = libraries();
  check(library.create(&blas_), "cublasCreate");
  check(library.set_stream(blas_, stream_), "cublasSetStream");
  // Full float: TensorFloat-32 rounds inputs to 11 bits, and the Hessian would no longer be the CPU's.
  check(library.set_math_mode(blas_, CUBLAS_DEFAULT_MATH), "cublasSetMathMode");
  check(library.solver_create(&solver_), "cusolverDnCreate");
  check(library.solver_set_stream(solver_, stream_), "cusolverDnSetStream");
  check(library.params_create(&params_), "cusolverDnCreateParams");
}

Session::~Session() {
  cudaDeviceSynchronize();
  for (auto* list : {&running_, &free_}) {
    for (const auto& pair : *list) {
      for (const cudaEvent_t event : pair) cudaEventDestroy(event);
    }
  }
  for (const Pinned& memory : pinned_) cudaFreeHost(memory.data);
  const Libraries& library = libraries();
  if (params_ != nullptr) library.params_destroy(params_);
  if (solver_ != nullptr) library.solver_destroy(solver_);
  if (blas_ != nullptr) library.destroy(blas_);
  cudaStreamDestroy(copies_);
  cudaStreamDestroy(stream_);
}

void* Session::pinned(std::size_t which, std::uint64_t bytes) {
  Pinned& memory = pinned_[which];
  if (memory.bytes >= bytes) return memory.data;
  cudaFreeHost(memory.data);
  memory = {};
  check(cudaMallocHost(&memory.data, bytes), "pinned memory");
  memory.bytes = bytes;
  return memory.data;
}

std::array<cudaEvent_t, 2> Session::take_events() {
  if (running_.size() >= kMostEvents) collect();
  if (!free_.empty()) {
    const auto pair = free_.back();
    free_.pop_back();
    return pair;
  }
  std::array<cudaEvent_t, 2> pair{};
  for (cudaEvent_t& event : pair) check(cudaEventCreate(&event), "cudaEventCreate");
  return pair;
}

void Session::collect() {
  for (const auto& pair : running_) {
    float milliseconds = 0;
    check(cudaEventSynchronize(pair[1]), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&milliseconds, pair[0], pair[1]), "cudaEventElapsedTime");
    seconds_ += milliseconds / 1e3;
    free_.push_back(pair);
  }
  running_.clear();
}

double Session::blas_seconds() {
  collect();
  return seconds_;
}

Session::Timed::Timed(Session& session) : session_(session), events_(session.take_events()) {
  check(cudaEventRecord(events_[0], session.stream_), "cudaEventRecord");
}

Session::Timed::~Timed() {
  cudaEventRecord(events_[1], session_.stream_);
  session_.running_.push_back(events_);
}

// cuBLAS is column-major: a row-major product is its transpose.
void Session::multiply(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out, float factor, float keep) {
  if (m == 0 || n == 0) return;
  const Timed timed(*this);
  check(libraries().sgemm(blas_, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &factor, b.values, b.stride, a.values, a.stride,
                          &keep, out.values, out.stride),
        "cublasSgemm");
}

void Session::multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) {
  const Timed timed(*this);
  const float one = 1, zero = 0;
  check(libraries().sgemm(blas_, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, b.values, b.stride, a.values, a.stride, &zero,
                          out.values, out.stride),
        "cublasSgemm");
}

void Session::multiply_from_columns(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) {
  const Timed timed(*this);
  const float one = 1, zero = 0;
  check(libraries().sgemm(blas_, CUBLAS_OP_N, CUBLAS_OP_T, n, m, k, &one, b.values, b.stride, a.values, a.stride, &zero,
                          out.values, out.stride),
        "cublasSgemm");
}

void Session::square(std::int64_t n, std::int64_t k, const float* a, float* out) {
  const Timed timed(*this);
  const float one = 1, zero = 0;
  check(libraries().ssyrk(blas_, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, n, k, &one, a, n, &zero, out, n), "cublasSsyrk");
}

// Tensor cores multiply bf16 exactly and add in float.
void Session::multiply_strip(std::int64_t n, std::int64_t k, std::int64_t first, std::int64_t first_column,
                             std::int64_t rows, const __nv_bfloat16* a, const __nv_bfloat16* b, float* out) {
  const Timed timed(*this);
  const float one = 1, zero = 0;
  check(libraries().gemm_ex(blas_, CUBLAS_OP_N, CUBLAS_OP_T, n - first_column, rows, k, &one, b + first_column,
                            CUDA_R_16BF, n, a + first, CUDA_R_16BF, n, &zero, out + first * n + first_column,
                            CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

// Strips of rows, each from its diagonal on: 5/8 of the whole product.
void Session::square(std::int64_t n, std::int64_t k, const __nv_bfloat16* a, float* out) {
  constexpr std::int64_t kStrips = 4, kLeast = 1024;  // narrower strips leave the device idle
  const std::int64_t height = std::max(kLeast, (n + 8 * kStrips - 1) / (8 * kStrips) * 8);
  for (std::int64_t first = 0; first < n; first += height)
    multiply_strip(n, k, first, first, std::min(height, n - first), a, a, out);
}

void Session::multiply_from_columns(std::int64_t n, std::int64_t k, const __nv_bfloat16* a, const __nv_bfloat16* b,
                                    float* out) {
  multiply_strip(n, k, 0, 0, n, a, b, out);
}

bool Session::invert_factor(std::int64_t n, double* matrix) {
  const Libraries& library = libraries();
  Array<int> info(*this, 1);
  std::size_t factor_device = 0, factor_host = 0, invert_device = 0, invert_host = 0;
  check(library.potrf_size(solver_, params_, CUBLAS_FILL_MODE_UPPER, n, CUDA_R_64F, matrix, n, CUDA_R_64F,
                           &factor_device, &factor_host),
        "cusolverDnXpotrf_bufferSize");
  check(library.trtri_size(solver_, CUBLAS_FILL_MODE_UPPER, CUBLAS_DIAG_NON_UNIT, n, CUDA_R_64F, matrix, n,
                           &invert_device, &invert_host),
        "cusolverDnXtrtri_bufferSize");
  const Array<char> device(*this, static_cast<std::int64_t>(std::max(factor_device, invert_device)) + 1);
  std::vector<char> host(std::max(factor_host, invert_host) + 1);
  const auto failed = [&] {
    int value = 0;
    check(cudaMemcpyAsync(&value, info.get(), sizeof value, cudaMemcpyDeviceToHost, stream_), "reading a status");
    check(cudaStreamSynchronize(stream_), "cuSOLVER");
    return value != 0;
  };
  {
    const Timed timed(*this);
    check(library.potrf(solver_, params_, CUBLAS_FILL_MODE_UPPER, n, CUDA_R_64F, matrix, n, CUDA_R_64F, device.get(),
                        factor_device, host.data(), factor_host, info.get()),
          "cusolverDnXpotrf");
  }
  if (failed()) return false;
  {
    const Timed timed(*this);
    check(library.trtri(solver_, CUBLAS_FILL_MODE_UPPER, CUBLAS_DIAG_NON_UNIT, n, CUDA_R_64F, matrix, n, device.get(),
                        invert_device, host.data(), invert_host, info.get()),
          "cusolverDnXtrtri");
  }
  return !failed();
}

}  // namespace facet::quantizer::cuda
