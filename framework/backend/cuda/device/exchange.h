// Small copies between host and device that hold the stream up for one short kernel.
//
// A copy engine in the stream's way costs it about ten microseconds, which is what lies between two decoding steps. So
// what goes to the device goes to a slot there first, on a stream of its own, while the step before still works; and
// what comes from it is stored into host memory by the same kernel that empties the slot.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "pinned.h"

namespace facet::cuda {

class Exchange {
 public:
  static constexpr std::uint64_t kSlotBytes = std::uint64_t{1} << 20;

  Exchange() = default;
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  cudaError_t start();

  // Copies at most kSlotBytes to the device in the order of `stream`; the host memory may change once this returns.
  cudaError_t send(void* device, const void* host, std::uint64_t bytes, cudaStream_t stream);
  // Asks for bytes of the device as the work queued so far leaves them. They are copied with the next send() or by
  // flush(), which therefore comes before anything else that is queued. One at a time.
  cudaError_t ask(const void* device, std::uint64_t bytes);
  cudaError_t flush(cudaStream_t stream);
  // Waits for what was asked for; valid until the next ask().
  cudaError_t wait(const void** host, cudaStream_t stream);

 private:
  static constexpr int kSlots = 4;

  struct Slot {
    Pinned host;
    void* device = nullptr;
    cudaEvent_t arrived = nullptr;  // on the device
    cudaEvent_t emptied = nullptr;
  };

  Slot slots_[kSlots];
  int next_ = 0;
  cudaStream_t side_ = nullptr;
  Pinned answer_;
  const void* asked_ = nullptr;  // until its copy is queued
  std::uint64_t asked_bytes_ = 0;
  cudaEvent_t answered_ = nullptr;
};

// A copy whose both ends the device can address; nothing when bytes is 0.
struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  std::uint64_t bytes = 0;
};
cudaError_t launch_copies(const Copy& first, const Copy& second, cudaStream_t stream);

}  // namespace facet::cuda
