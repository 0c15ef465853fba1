#include "device.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <stdexcept>

namespace facet::bench {

namespace {

__device__ std::uint32_t mix(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// The sum of four bytes is close enough to a normal distribution.
__device__ float normal(std::uint32_t seed) {
  const std::uint32_t bits = mix(seed);
  const int sum = static_cast<int>((bits & 255) + ((bits >> 8) & 255) + ((bits >> 16) & 255) + (bits >> 24)) - 510;
  return static_cast<float>(sum) / 147.8f;
}

template <typename T>
__global__ void fill(T* values, std::uint64_t count, float spread, std::uint32_t seed) {
  const std::uint64_t step = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = blockIdx.x * static_cast<std::uint64_t>(blockDim.x) + threadIdx.x; i < count; i += step)
    values[i] = static_cast<T>(spread * normal(static_cast<std::uint32_t>(i) + seed));
}

__global__ void __launch_bounds__(512, 2) read_all(const uint4* values, std::uint64_t count, std::uint32_t* sink) {
  const std::uint64_t step = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  std::uint32_t sum = 0;
  for (std::uint64_t i = blockIdx.x * static_cast<std::uint64_t>(blockDim.x) + threadIdx.x; i < count; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) v[u] = i + u * step < count ? __ldg(values + i + u * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int u = 0; u < 8; ++u) sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (sum == 0x12345678u) atomicAdd(sink, 1u);  // keeps the loads
}

template <typename T>
__global__ void count_bad(const T* values, std::uint64_t count, std::uint32_t* bad) {
  const std::uint64_t step = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = blockIdx.x * static_cast<std::uint64_t>(blockDim.x) + threadIdx.x; i < count; i += step)
    if (!isfinite(static_cast<float>(values[i]))) atomicAdd(bad, 1u);
}

// Keeps the device busy while the host queues what is timed.
__global__ void delay(long long clocks) {
  const long long start = clock64();
  while (clock64() - start < clocks) {
  }
}

}  // namespace

void require(cudaError_t result, const char* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
}

DeviceMemory::DeviceMemory(std::uint64_t bytes) : bytes_(bytes) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, bytes), "cudaMalloc");
  data_ = static_cast<std::uint8_t*>(memory);
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) cudaFree(data_);
}

void fill_values(const DeviceMemory& memory, bool bf16, float spread, std::uint32_t seed) {
  if (bf16) {
    fill<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16*>(memory.data()), memory.bytes() / 2, spread, seed);
  } else {
    fill<<<1024, 256>>>(reinterpret_cast<float*>(memory.data()), memory.bytes() / 4, spread, seed);
  }
  require(cudaGetLastError(), "fill");
  require(cudaDeviceSynchronize(), "fill");
}

bool all_finite(const DeviceMemory& memory, bool bf16) {
  const DeviceMemory bad(4);
  require(cudaMemset(bad.data(), 0, 4), "cudaMemset");
  auto* count = reinterpret_cast<std::uint32_t*>(bad.data());
  if (bf16) {
    count_bad<<<256, 256>>>(reinterpret_cast<const __nv_bfloat16*>(memory.data()), memory.bytes() / 2, count);
  } else {
    count_bad<<<256, 256>>>(reinterpret_cast<const float*>(memory.data()), memory.bytes() / 4, count);
  }
  std::uint32_t host = 1;
  require(cudaMemcpy(&host, count, 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return host == 0;
}

double read_rate(const DeviceMemory& memory) {
  const DeviceMemory sink(4);
  const Timing timing = time_graph(
      [&](cudaStream_t stream) {
        read_all<<<264, 512, 0, stream>>>(reinterpret_cast<const uint4*>(memory.data()), memory.bytes() / 16,
                                          reinterpret_cast<std::uint32_t*>(sink.data()));
      },
      9);
  return static_cast<double>(memory.bytes()) / timing.least_us * 1e6;
}

Timing time_graph(const std::function<void(cudaStream_t)>& body, int replays) {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  require(cudaEventCreate(&begin), "cudaEventCreate");
  require(cudaEventCreate(&end), "cudaEventCreate");
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  body(stream);
  require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  require(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  std::vector<double> times;
  for (int replay = -2; replay < replays; ++replay) {
    delay<<<1, 1, 0, stream>>>(200000);
    require(cudaEventRecord(begin, stream), "cudaEventRecord");
    require(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    require(cudaEventRecord(end, stream), "cudaEventRecord");
    require(cudaStreamSynchronize(stream), "graph replay");
    float ms = 0;
    require(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    if (replay >= 0) times.push_back(1e3 * static_cast<double>(ms));
  }
  std::sort(times.begin(), times.end());
  require(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  require(cudaGraphDestroy(graph), "cudaGraphDestroy");
  require(cudaEventDestroy(begin), "cudaEventDestroy");
  require(cudaEventDestroy(end), "cudaEventDestroy");
  require(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return {times[times.size() / 2], times.front(), times.back()};
}

}  // namespace facet::bench
