// Pinned host memory, which the device reads and writes by itself.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace facet::cuda {

class Pinned {
 public:
  Pinned() = default;
  ~Pinned() { cudaFreeHost(data_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  // At least so many bytes; what was there is lost when it grows.
  cudaError_t reserve(std::uint64_t bytes) {
    if (bytes <= bytes_) return cudaSuccess;
    cudaFreeHost(data_);
    data_ = nullptr;
    bytes_ = 0;
    const cudaError_t error = cudaMallocHost(&data_, bytes);
    if (error == cudaSuccess) bytes_ = bytes;
    return error;
  }
  void* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace facet::cuda
