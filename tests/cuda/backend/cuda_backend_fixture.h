// Both backends side by side, and data that moves between them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

#include "facet/backend/cpu_backend.h"
#include "facet/backend/cuda_backend.h"
#include "facet/base/error.h"
#include "facet/sampling/sampler.h"
#include "facet/sdk/numeric.h"

namespace facet {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr double kBf16 = 0x1p-8;  // rounding to 8 bits, with a neighbour's worth of room

class CudaBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      gpu_ = make_cuda_backend();
    } catch (const Error& error) {
      if (std::getenv("FACET_REQUIRE_GPU") != nullptr) FAIL() << error.full_text();
      GTEST_SKIP() << error.full_text();
    }
    const unsigned seed = std::random_device{}();
    RecordProperty("seed", static_cast<int>(seed));
    std::printf("seed %u\n", seed);
    random_.seed(seed);
  }

  // Values that bf16 holds exactly.
  std::vector<float> numbers(std::size_t count, float spread = 1.0f) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> values(count);
    for (float& value : values) value = sdk::bf16_to_float(sdk::float_to_bf16(normal(random_)));
    return values;
  }
  template <typename T>
  T* on_gpu(const std::vector<T>& values) {
    buffers_.push_back(gpu_->allocate(values.size() * sizeof(T), 256, "test"));
    gpu_->upload(buffers_.back().data(), values.data(), values.size() * sizeof(T));
    return buffers_.back().template as<T>();
  }
  std::uint16_t* bf16_on_gpu(const std::vector<float>& values) {
    std::vector<std::uint16_t> narrow;
    for (const float value : values) narrow.push_back(sdk::float_to_bf16(value));
    return on_gpu(narrow);
  }
  template <typename T>
  std::vector<T> back(const T* device, std::size_t count) {
    const auto* host = static_cast<const T*>(gpu_->read_back(device, count * sizeof(T)));
    return {host, host + count};
  }
  std::vector<float> bf16_back(const std::uint16_t* device, std::size_t count) {
    std::vector<float> values;
    for (const std::uint16_t value : back(device, count)) values.push_back(sdk::bf16_to_float(value));
    return values;
  }
  static void expect_near(const std::vector<float>& values, const std::vector<float>& right, double relative,
                          double absolute) {
    ASSERT_EQ(values.size(), right.size());
    for (std::size_t i = 0; i < right.size(); ++i) {
      const double allowed = relative * std::abs(static_cast<double>(right[i])) + absolute;
      ASSERT_NEAR(values[i], right[i], allowed) << "element " << i;
    }
  }

  HostServices services_{2, "auto"};
  std::unique_ptr<Backend> cpu_ = make_cpu_backend(services_);
  std::unique_ptr<Backend> gpu_;
  std::vector<DeviceBuffer> buffers_;
  std::mt19937 random_;
};

}  // namespace facet
