// What the benchmark needs of the device: memory with random content, a timed graph, and the rate at which it reads.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace facet::bench {

void require(cudaError_t result, const char* what);

class DeviceMemory {
 public:
  explicit DeviceMemory(std::uint64_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept : data_(other.data_), bytes_(other.bytes_) { other.data_ = nullptr; }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::uint8_t* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// Fills with bf16 or float values of a normal-like spread; `bf16` tells the element type.
void fill_values(const DeviceMemory& memory, bool bf16, float spread, std::uint32_t seed);
// Bytes a second of a kernel that reads `memory` once; the best of several passes.
double read_rate(const DeviceMemory& memory);
// True when every element (bf16 or float) is finite.
bool all_finite(const DeviceMemory& memory, bool bf16);

struct Timing {
  double median_us = 0;  // of one replay
  double least_us = 0;
  double most_us = 0;
};
// Captures what `body` launches on the stream into a graph and times replays of it.
Timing time_graph(const std::function<void(cudaStream_t)>& body, int replays);

}  // namespace facet::bench
