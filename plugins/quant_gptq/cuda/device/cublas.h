// cuBLAS, found when the program runs: a machine without it still lists the plugins, with the reason.
#pragma once

#include <cublas_v2.h>

#include "facet/sdk/linear.h"

namespace facet::linear {

// cublasGemmEx has overloads in C++, so its type is written out.
using CublasGemm = cublasStatus_t (*)(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                      int n, int k, const void* alpha, const void* a, cudaDataType a_type, int lda,
                                      const void* b, cudaDataType b_type, int ldb, const void* beta, void* c,
                                      cudaDataType c_type, int ldc, cublasComputeType_t compute,
                                      cublasGemmAlgo_t algorithm);

// The functions that the plugins use; null when the library is missing.
struct CublasLibrary {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
  decltype(&cublasSetMathMode) set_math_mode = nullptr;
  CublasGemm gemm = nullptr;
  decltype(&cublasGetStatusString) status_string = nullptr;
  std::string error;  // why it is missing
};

const CublasLibrary& cublas_library();

// Notes why cuBLAS cannot be used here.
void probe_cublas(sdk::Reasons& reasons);

// Bytes of workspace that cublas_multiply() takes; what the library recommends for Hopper.
inline constexpr std::uint64_t kCublasWorkspace = 32 << 20;

// A handle; made on first use, since a plugin is created before the host has chosen its device.
class Cublas {
 public:
  Cublas() = default;
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // Makes the handle. Called while planning: run() must not allocate.
  void open();

  struct Product {
    std::int64_t rows;          // of x and y
    std::int64_t out_features;  // rows of w
    std::int64_t in_features;
    const void* x;  // bf16 [rows, in_features]
    std::int64_t x_stride;
    const void* w;  // bf16 [out_features, in_features]
    std::int64_t w_stride;
    void* y;  // [rows, out_features]
    std::int64_t y_stride;
    abi::DType output;  // bf16 or f32
  };
  // y = x w^T with fp32 sums. `workspace` has kCublasWorkspace bytes.
  void multiply(const Product& product, void* workspace, void* stream) const;

 private:
  cublasHandle_t handle_ = nullptr;
};

}  // namespace facet::linear
