// What the device says about itself: times of recorded steps, read rates, free memory.
#include <chrono>
#include <thread>

#include "cuda_backend_fixture.h"

namespace facet {
namespace {

TEST_F(CudaBackendTest, StepTimesAreInOrderAndHoldTheGapsBetween) {
  constexpr std::int64_t kWidth = 512;
  auto* in = on_gpu(numbers(kWidth));
  auto* out = on_gpu(std::vector<float>(kWidth, kNan));
  auto* row = on_gpu(std::vector<std::int32_t>{0});
  const auto step = [&] { return gpu_->run_recorded(this, 7, [&] { gpu_->gather_rows(in, row, 1, kWidth, out); }); };
  EXPECT_TRUE(step());  // without stamps: those steps are recorded anew
  constexpr auto kPause = std::chrono::milliseconds(20);
  std::vector<float> right;
  const std::vector<StepTime> steps = gpu_->time_steps([&] {
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(step(), i == 0);
      back(out, kWidth);  // waits for the step
      if (i == 1) std::this_thread::sleep_for(kPause);
    }
    right = numbers(kWidth);
    gpu_->upload(in, right.data(), right.size() * sizeof(float));
    step();
  });
  expect_near(back(out, kWidth), right, 0, 0);
  EXPECT_FALSE(step());
  ASSERT_EQ(steps.size(), 5u);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].replayed, i > 0);
    EXPECT_GT(steps[i].start_ns, 0u);
    EXPECT_LE(steps[i].start_ns, steps[i].end_ns);
    if (i > 0) {
      EXPECT_LE(steps[i - 1].end_ns, steps[i].start_ns);
    }
  }
  // The device's clock and the host's differ by far less than half.
  EXPECT_GE(steps[2].start_ns - steps[1].end_ns,
            static_cast<std::uint64_t>(std::chrono::nanoseconds(kPause).count()) / 2);
  EXPECT_TRUE(gpu_->time_steps([] {}).empty());
  EXPECT_THROW(gpu_->time_steps([] { throw_error(ErrorKind::run, "inside"); }), Error);
  EXPECT_EQ(gpu_->time_steps([&] { step(); }).size(), 1u);
  EXPECT_THROW(cpu_->time_steps([] {}), Error);
}

TEST_F(CudaBackendTest, ReadRatesAreMeasuredOrRefused) {
  const std::vector<double> rates = gpu_->read_rates(std::uint64_t{1} << 28, 3);
  ASSERT_EQ(rates.size(), 3u);
  for (const double rate : rates) EXPECT_TRUE(std::isfinite(rate) && rate > 0) << rate;
  EXPECT_THROW(gpu_->read_rates(std::uint64_t{1} << 46, 1), Error);
  EXPECT_EQ(gpu_->read_rates(std::uint64_t{1} << 20, 1).size(), 1u);  // a refusal leaves the device usable
}

TEST_F(CudaBackendTest, FreeMemoryFallsByWhatIsAllocated) {
  const std::uint64_t bytes = std::uint64_t{1} << 30, before = gpu_->free_memory().value();
  const DeviceBuffer buffer = gpu_->allocate(bytes, 256, "test");
  // Others may use the device, too, but hardly give back a gibibyte at this moment.
  EXPECT_LE(gpu_->free_memory().value(), before - bytes / 2);
  EXPECT_FALSE(cpu_->free_memory().has_value());
}

}  // namespace
}  // namespace facet
