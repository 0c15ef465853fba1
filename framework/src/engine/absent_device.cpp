#include "facet/backend/device_profile.h"

namespace facet {
namespace {

class AbsentCuda final : public DeviceProfile {
 public:
  explicit AbsentCuda(std::string reason) : reason_(std::move(reason)) {}

  abi::Device device() const override { return abi::Device::cuda; }
  abi::DType activation_type() const override { return abi::DType::bf16; }
  std::string description() const override { return "cuda, not here"; }
  std::optional<std::uint64_t> free_memory() const override { return std::nullopt; }
  std::uint64_t placed_bytes(std::uint64_t values, std::uint64_t side) const override { return values + side; }
  std::string absence() const override { return reason_; }

 private:
  std::string reason_;
};

}  // namespace

std::unique_ptr<DeviceProfile> make_absent_cuda(std::string reason) {
  return std::make_unique<AbsentCuda>(std::move(reason));
}

}  // namespace facet
