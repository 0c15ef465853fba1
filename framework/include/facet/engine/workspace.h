// Scratch memory that the kernels of a pipeline use in turn, and the counters beside it.
#pragma once

#include <cstdint>

#include "facet/abi/linear.h"
#include "facet/backend/backend.h"
#include "facet/memory/memory_plan.h"

namespace facet {

class Workspace {
 public:
  Workspace() = default;
  // `bytes` of scratch of undefined content, 256-byte aligned.
  Workspace(Backend& backend, std::uint64_t bytes)
      : buffer_(backend.allocate(allocated_bytes(bytes), kAlignment, kWorkspaceTag)), bytes_(bytes) {}

  // What a workspace of `bytes` takes in the memory account.
  static std::uint64_t allocated_bytes(std::uint64_t bytes) {
    return (bytes + abi::kCounterBytes - 1) / abi::kCounterBytes * abi::kCounterBytes + abi::kCounterBytes;
  }
  abi::Memory memory() const { return {buffer_.data(), bytes_}; }
  // See LinearArgs::counters; behind the scratch. Zero since the allocation, as every run leaves them.
  void* counters() const { return static_cast<char*>(buffer_.data()) + (allocated_bytes(bytes_) - abi::kCounterBytes); }

 private:
  static constexpr std::uint64_t kAlignment = 256;
  DeviceBuffer buffer_;
  std::uint64_t bytes_ = 0;
};

}  // namespace facet
