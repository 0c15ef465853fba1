#include "device/exchange.h"

#include <cstring>

namespace facet::cuda {

Exchange::~Exchange() {
  if (side_ != nullptr) cudaStreamSynchronize(side_);
  for (Slot& slot : slots_) {
    cudaFree(slot.device);
    if (slot.arrived != nullptr) cudaEventDestroy(slot.arrived);
    if (slot.emptied != nullptr) cudaEventDestroy(slot.emptied);
  }
  if (answered_ != nullptr) cudaEventDestroy(answered_);
  if (side_ != nullptr) cudaStreamDestroy(side_);
}

cudaError_t Exchange::start() {
  cudaError_t error = cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&answered_, cudaEventDisableTiming);
  for (Slot& slot : slots_) {
    if (error == cudaSuccess) error = slot.host.reserve(kSlotBytes);
    if (error == cudaSuccess) error = cudaMalloc(&slot.device, kSlotBytes);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&slot.arrived, cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&slot.emptied, cudaEventDisableTiming);
  }
  return error;
}

cudaError_t Exchange::send(void* device, const void* host, std::uint64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % kSlots;
  // The two copies of a launch have no order between them.
  const char *to = static_cast<const char*>(device), *from = static_cast<const char*>(asked_);
  cudaError_t error = to < from + asked_bytes_ && from < to + bytes ? flush(stream) : cudaSuccess;
  // An event that nobody has recorded yet counts as past.
  if (error == cudaSuccess) error = cudaEventSynchronize(slot.emptied);
  if (error != cudaSuccess) return error;
  std::memcpy(slot.host.data(), host, bytes);
  error = cudaMemcpyAsync(slot.device, slot.host.data(), bytes, cudaMemcpyHostToDevice, side_);
  if (error == cudaSuccess) error = cudaEventRecord(slot.arrived, side_);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(stream, slot.arrived, 0);
  if (error == cudaSuccess)
    error = launch_copies({device, slot.device, bytes}, {answer_.data(), asked_, asked_bytes_}, stream);
  if (error == cudaSuccess) error = cudaEventRecord(slot.emptied, stream);
  if (error == cudaSuccess && asked_bytes_ > 0) error = cudaEventRecord(answered_, stream);
  if (error == cudaSuccess) asked_bytes_ = 0;
  return error;
}

cudaError_t Exchange::ask(const void* device, std::uint64_t bytes) {
  const cudaError_t error = answer_.reserve(bytes);
  asked_ = device;
  asked_bytes_ = error == cudaSuccess ? bytes : 0;
  return error;
}

cudaError_t Exchange::flush(cudaStream_t stream) {
  if (asked_bytes_ == 0) return cudaSuccess;
  cudaError_t error = launch_copies({answer_.data(), asked_, asked_bytes_}, {}, stream);
  if (error == cudaSuccess) error = cudaEventRecord(answered_, stream);
  if (error == cudaSuccess) asked_bytes_ = 0;
  return error;
}

cudaError_t Exchange::wait(const void** host, cudaStream_t stream) {
  *host = answer_.data();
  const cudaError_t error = flush(stream);
  return error == cudaSuccess ? cudaEventSynchronize(answered_) : error;
}

}  // namespace facet::cuda
