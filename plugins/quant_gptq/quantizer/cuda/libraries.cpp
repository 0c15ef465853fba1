#include "libraries.h"

#include <dlfcn.h>

namespace facet::quantizer::cuda {
namespace {

template <typename Function>
void find(void* library, const char* name, Function& function, std::string& error) {
  if (library == nullptr) return;
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && error.empty()) error = std::string("there is no function ") + name;
}

// The major version that the headers of this build belong to.
void* open(const char* name, int major, std::string& error) {
  const std::string file = std::string("lib") + name + ".so." + std::to_string(major);
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr && error.empty()) {
    const char* reason = dlerror();
    error = (reason != nullptr ? std::string(reason) : file) + "; install it or name its folder in LD_LIBRARY_PATH";
  }
  return library;
}

Libraries load() {
  Libraries loaded;
  std::string& error = loaded.error;
  void* blas = open("cublas", CUBLAS_VER_MAJOR, error);
  find(blas, "cublasCreate_v2", loaded.create, error);
  find(blas, "cublasDestroy_v2", loaded.destroy, error);
  find(blas, "cublasSetStream_v2", loaded.set_stream, error);
  find(blas, "cublasSetMathMode", loaded.set_math_mode, error);
  find(blas, "cublasSgemm_v2_64", loaded.sgemm, error);
  find(blas, "cublasGemmEx_64", loaded.gemm_ex, error);
  find(blas, "cublasSsyrk_v2_64", loaded.ssyrk, error);
  find(blas, "cublasGetStatusString", loaded.blas_text, error);
  void* solver = open("cusolver", CUSOLVER_VER_MAJOR, error);
  find(solver, "cusolverDnCreate", loaded.solver_create, error);
  find(solver, "cusolverDnDestroy", loaded.solver_destroy, error);
  find(solver, "cusolverDnSetStream", loaded.solver_set_stream, error);
  find(solver, "cusolverDnCreateParams", loaded.params_create, error);
  find(solver, "cusolverDnDestroyParams", loaded.params_destroy, error);
  find(solver, "cusolverDnXpotrf_bufferSize", loaded.potrf_size, error);
  find(solver, "cusolverDnXpotrf", loaded.potrf, error);
  find(solver, "cusolverDnXtrtri_bufferSize", loaded.trtri_size, error);
  find(solver, "cusolverDnXtrtri", loaded.trtri, error);
  return loaded;
}

}  // namespace

const Libraries& libraries() {
  static const Libraries loaded = load();
  return loaded;
}

}  // namespace facet::quantizer::cuda
