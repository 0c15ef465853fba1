// What a plan must know of a device. A Backend says it of the device it runs on; a plan can also be made for a device
// that is not here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "facet/abi/types.h"

namespace facet {

class DeviceProfile {
 public:
  virtual ~DeviceProfile() = default;

  virtual abi::Device device() const = 0;
  // f32 on the CPU, bf16 on CUDA.
  virtual abi::DType activation_type() const = 0;
  // Model and memory of a device, for records: "NVIDIA H200, 139.8 GiB".
  virtual std::string description() const = 0;
  // Bytes that can still be allocated; nothing where the host's memory is the device's, or the device is not here.
  virtual std::optional<std::uint64_t> free_memory() const = 0;
  // Bytes that Backend::place() allocates for a weight with so many bytes of values, and of scales and zero codes.
  virtual std::uint64_t placed_bytes(std::uint64_t values, std::uint64_t side) const = 0;
  // Why the device is not here; empty: it is.
  virtual std::string absence() const { return {}; }
};

// An NVIDIA GPU that is planned for; in all that a plan asks it answers as make_cuda_backend() does where there is one.
std::unique_ptr<DeviceProfile> make_absent_cuda(std::string reason);

}  // namespace facet
