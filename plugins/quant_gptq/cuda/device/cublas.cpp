#include "quant_gptq/cuda/device/cublas.h"

#include <dlfcn.h>

namespace facet::linear {

namespace {

template <typename Function>
void find(void* library, const char* name, Function& function, std::string& error) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && error.empty()) error = sdk::concat("cuBLAS has no function ", name);
}

CublasLibrary load() {
  CublasLibrary loaded;
  // The major version that the headers of this build belong to.
  const std::string name = sdk::concat("libcublas.so.", CUBLAS_VER_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    loaded.error = sdk::concat("cuBLAS is missing: ", reason != nullptr ? reason : name,
                               "; install it or name its folder in LD_LIBRARY_PATH");
    return loaded;
  }
  find(library, "cublasCreate_v2", loaded.create, loaded.error);
  find(library, "cublasDestroy_v2", loaded.destroy, loaded.error);
  find(library, "cublasSetStream_v2", loaded.set_stream, loaded.error);
  find(library, "cublasSetWorkspace_v2", loaded.set_workspace, loaded.error);
  find(library, "cublasSetMathMode", loaded.set_math_mode, loaded.error);
  find(library, "cublasGemmEx", loaded.gemm, loaded.error);
  find(library, "cublasGetStatusString", loaded.status_string, loaded.error);
  return loaded;
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  sdk::fail(status == CUBLAS_STATUS_ALLOC_FAILED ? abi::Status::out_of_memory : abi::Status::failed, what, ": ",
            cublas_library().status_string(status));
}

}  // namespace

const CublasLibrary& cublas_library() {
  static const CublasLibrary library = load();
  return library;
}

void probe_cublas(sdk::Reasons& reasons) {
  reasons.require(cublas_library().error.empty(), cublas_library().error);
}

Cublas::~Cublas() {
  if (handle_ != nullptr) cublas_library().destroy(handle_);
}

void Cublas::open() {
  if (handle_ != nullptr) return;
  check(cublas_library().create(&handle_), "cublasCreate");
  // Partial sums of a split product stay fp32.
  const auto mode = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  check(cublas_library().set_math_mode(handle_, mode), "cublasSetMathMode");
}

void Cublas::multiply(const Product& product, void* workspace, void* stream) const {
  const CublasLibrary& library = cublas_library();
  check(library.set_stream(handle_, static_cast<cudaStream_t>(stream)), "cublasSetStream");
  // Setting the stream takes the workspace back.
  check(library.set_workspace(handle_, workspace, kCublasWorkspace), "cublasSetWorkspace");
  const float one = 1.0f;
  const float zero = 0.0f;
  const auto to_int = [](std::int64_t value) { return static_cast<int>(value); };
  // Column-major, so y^T = w x^T.
  check(library.gemm(handle_, CUBLAS_OP_T, CUBLAS_OP_N, to_int(product.out_features), to_int(product.rows),
                     to_int(product.in_features), &one, product.w, CUDA_R_16BF, to_int(product.w_stride), product.x,
                     CUDA_R_16BF, to_int(product.x_stride), &zero, product.y,
                     product.output == abi::DType::f32 ? CUDA_R_32F : CUDA_R_16BF, to_int(product.y_stride),
                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

}  // namespace facet::linear
