// The device's tests of flash_cuda on the emulated machine: cases are drawn, so that those of much work are rare, and
// the machine's choices follow from the seed and the test alone.
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>

#include "../attention/cases.h"
#include "backend/cuda/device/launch.h"
#include "machine.h"

namespace facet::test {

namespace {

// Of work_of(): all cases of so much are run, others with the same work on average, and none of more than kMost, which
// takes seconds.
constexpr double kUnit = 8e4;
constexpr double kMost = 1.2e7;
constexpr int kMultiprocessors[] = {12, 40, 132};

}  // namespace

bool drawn(double work) {
  static const testing::TestInfo* known = nullptr;
  static std::mt19937_64 random;
  const testing::TestInfo* running = testing::UnitTest::GetInstance()->current_test_info();
  if (running != known) random.seed(base_seed() + std::hash<std::string>()(running->name()));
  known = running;
  emulated::set_seed(random());
  emulated::device().multiprocessors = kMultiprocessors[random() % std::size(kMultiprocessors)];
  return work <= kMost && work * std::uniform_real_distribution<double>()(random) <= kUnit;
}

Prepare backend_preparation() {
  return [](const AttentionInput& input) {
    const cudaError_t error = cuda::launch_prepare_attention(input, nullptr);
    if (error != cudaSuccess) throw std::runtime_error(std::string("preparation: ") + cudaGetErrorString(error));
  };
}

}  // namespace facet::test
