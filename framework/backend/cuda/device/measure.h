// What the device says about itself while it works: when steps begin and end, how fast it reads and multiplies.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace facet::cuda {

// Moments of the device's clock, noted by a kernel of one thread that is queued, or recorded into a step, like any
// other. A step with one at each end takes about two microseconds longer, so steps that are timed as a whole have none.
class Stamps {
 public:
  Stamps() = default;
  ~Stamps();
  Stamps(const Stamps&) = delete;
  Stamps& operator=(const Stamps&) = delete;

  // Forgets what was noted. Recorded steps keep the address of the memory, which therefore never moves.
  cudaError_t clear(cudaStream_t stream);
  cudaError_t queue(cudaStream_t stream);
  // Waits. Nanoseconds, in the order of the queue; the first kStamps of them.
  cudaError_t read(cudaStream_t stream, std::vector<std::uint64_t>& moments);

  static constexpr std::uint64_t kStamps = 1u << 16;

 private:
  std::uint64_t* memory_ = nullptr;  // how many, then the moments
};

// Bytes a second, one value for each of `repeats` reads of `bytes` of fresh memory, after some that are not counted.
cudaError_t measure_read_rates(std::uint64_t bytes, std::int64_t repeats, double* rates, cudaStream_t stream);

// Operations a second of products of bf16 with fp32 sums, a multiplication and an addition each; the same way.
cudaError_t measure_multiply_rates(std::int64_t repeats, double* rates, cudaStream_t stream);

// memory: how many moments there are, then room for `capacity` of them.
cudaError_t launch_stamp(std::uint64_t* memory, std::uint64_t capacity, cudaStream_t stream);
// sink: one word, written only by chance, so that the loads stay.
cudaError_t launch_read_all(const void* memory, std::uint64_t bytes, std::uint32_t* sink, cudaStream_t stream);
// One block a multiprocessor; operations: of the launch. sink: one word, never written.
cudaError_t launch_multiply(int blocks, double* operations, float* sink, cudaStream_t stream);

}  // namespace facet::cuda
