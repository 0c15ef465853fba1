// cuBLAS and cuSOLVER, found when the library is used: a machine without them still quantizes on the processor.
#pragma once

#include <cublas_v2.h>
#include <cusolverDn.h>

#include <string>

namespace facet::quantizer::cuda {

struct Libraries {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetMathMode) set_math_mode = nullptr;
  decltype(&cublasSgemm_v2_64) sgemm = nullptr;
  decltype(&cublasGemmEx_64) gemm_ex = nullptr;
  decltype(&cublasSsyrk_v2_64) ssyrk = nullptr;
  decltype(&cublasGetStatusString) blas_text = nullptr;

  decltype(&cusolverDnCreate) solver_create = nullptr;
  decltype(&cusolverDnDestroy) solver_destroy = nullptr;
  decltype(&cusolverDnSetStream) solver_set_stream = nullptr;
  decltype(&cusolverDnCreateParams) params_create = nullptr;
  decltype(&cusolverDnDestroyParams) params_destroy = nullptr;
  decltype(&cusolverDnXpotrf_bufferSize) potrf_size = nullptr;
  decltype(&cusolverDnXpotrf) potrf = nullptr;
  decltype(&cusolverDnXtrtri_bufferSize) trtri_size = nullptr;
  decltype(&cusolverDnXtrtri) trtri = nullptr;

  std::string error;  // what is missing; empty: nothing
};

const Libraries& libraries();

}  // namespace facet::quantizer::cuda
