// Device memory for tests: owned, and filled with 0xff (NaN in bf16 and f32) before anything is written.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace facet::test {

inline void require_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// Empty when a device of compute capability 9.0 is there, else why the tests cannot run.
inline std::string no_device_reason() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("no CUDA device: ") + cudaGetErrorString(error);
  int major = 0;
  int minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  if (major == 9 && minor == 0) return "";
  return "compute capability " + std::to_string(major) + "." + std::to_string(minor) + ", the kernels need 9.0";
}

template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t count) : count_(count) {
    require_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T) + 256), "cudaMalloc");
    fill(0xff);
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) { write(values); }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() const { return data_; }
  std::size_t bytes() const { return count_ * sizeof(T); }
  void fill(int byte) { require_cuda(cudaMemset(data_, byte, count_ * sizeof(T) + 256), "cudaMemset"); }
  void write(const std::vector<T>& values) {
    require_cuda(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    require_cuda(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost), "download");
    return values;
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

}  // namespace facet::test
