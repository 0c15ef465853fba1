// What the quantizer finds in this library.
#include <algorithm>
#include <memory>

#include "facet/sdk/cuda/no_gpu.h"
#include "input.h"

namespace facet::quantizer::cuda {
namespace {

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) : ordinal_(ordinal), session_(ordinal) {}

  Outcome facts(DeviceFacts* facts, Problem* problem) noexcept override {
    return guarded(problem, [&] {
      cudaDeviceProp properties{};
      check(cudaGetDeviceProperties(&properties, ordinal_), "cudaGetDeviceProperties");
      std::size_t free = 0, total = 0;
      check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
      *facts = {};
      std::copy_n(properties.name, sizeof facts->name - 1, facts->name);
      facts->total_bytes = total;
      facts->free_bytes = free;
      return Outcome::ok;
    });
  }
  Outcome begin(std::int64_t columns, std::int32_t with_originals, DeviceInput** input,
                Problem* problem) noexcept override {
    return guarded(problem, [&] {
      *input = new Input(session_, columns, with_originals != 0);
      return Outcome::ok;
    });
  }
  double blas_seconds() noexcept override {
    double seconds = 0;
    Problem ignored;
    guarded(&ignored, [&] {
      seconds = session_.blas_seconds();
      return Outcome::ok;
    });
    return seconds;
  }
  void destroy() noexcept override { delete this; }

 private:
  int ordinal_;
  Session session_;
};

// The kernels are compiled for this compute capability alone.
constexpr int kMajor = 9, kMinor = 0;

void require_device(int ordinal) {
  const std::string missing = sdk::why_no_gpu();
  if (!missing.empty()) throw Failure(missing);
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (ordinal >= count) throw Failure("there are " + std::to_string(count) + " CUDA devices");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  if (properties.major != kMajor || properties.minor != kMinor) {
    throw Failure(std::string(properties.name) + " has compute capability " + std::to_string(properties.major) + "." +
                  std::to_string(properties.minor) + ", this build has code for 9.0");
  }
}

}  // namespace
}  // namespace facet::quantizer::cuda

extern "C" __attribute__((visibility("default"))) facet::quantizer::cuda::Outcome facet_quantizer_cuda_v2(
    std::uint32_t version, std::int32_t ordinal, facet::quantizer::cuda::Device** device,
    facet::quantizer::cuda::Problem* problem) {
  using namespace facet::quantizer::cuda;
  return guarded(problem, [&] {
    if (version != kDeviceApiVersion) {
      throw Failure("the library has version " + std::to_string(kDeviceApiVersion) + " of its interface, the program " +
                    std::to_string(version));
    }
    require_device(ordinal);
    *device = new CudaDevice(ordinal);
    return Outcome::ok;
  });
}
