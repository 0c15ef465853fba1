// The vector exp of the flash kernels: exact at 0, zero far below, and within 2^-22 in between.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "flash/kernels.h"
#include "test_host.h"

namespace facet::test {
namespace {

using attention::Kernels;

std::vector<const Kernels*> kernels_of_this_machine() {
  std::vector<const Kernels*> all{&attention::generic_kernels()};
#if defined(FACET_ATTENTION_X86)
  if ((machine_features() & abi::kCpuAvx2) != 0) all.push_back(&attention::avx2_kernels());
  if ((machine_features() & abi::kCpuAvx512) != 0) all.push_back(&attention::avx512_kernels());
#endif
  return all;
}

class Exp : public testing::TestWithParam<const Kernels*> {};

TEST_P(Exp, IsWithinTwoToTheMinus22) {
  constexpr std::int64_t kCount = 1 << 20;
  std::vector<float> in(kCount);
  for (std::int64_t i = 0; i < kCount; ++i) {
    in[static_cast<std::size_t>(i)] = -87.0f * static_cast<float>(i) / static_cast<float>(kCount - 1);
  }
  std::vector<float> out(kCount);
  GetParam()->exp(in.data(), out.data(), kCount);
  double worst = 0.0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double right = std::exp(static_cast<double>(in[i]));
    worst = std::max(worst, std::abs(static_cast<double>(out[i]) / right - 1.0));
  }
  EXPECT_LT(worst, 0x1p-22);
}

TEST_P(Exp, EdgesAreExact) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> in(16, -infinity);
  in[0] = 0.0f;
  in[1] = -0.0f;
  in[2] = -87.01f;
  in[3] = -1e30f;
  in[4] = std::numeric_limits<float>::quiet_NaN();
  in[5] = -std::numeric_limits<float>::denorm_min();
  std::vector<float> out(16, 7.0f);
  GetParam()->exp(in.data(), out.data(), 16);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], 1.0f);
  EXPECT_EQ(out[2], 0.0f);
  EXPECT_EQ(out[3], 0.0f);
  EXPECT_TRUE(std::isnan(out[4])) << "a NaN score must be seen, not hidden";
  EXPECT_EQ(out[5], 1.0f);
  for (std::size_t i = 6; i < 16; ++i) EXPECT_EQ(out[i], 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Attention, Exp, testing::ValuesIn(kernels_of_this_machine()),
                         [](const auto& entry) { return std::string(entry.param->name); });

}  // namespace
}  // namespace facet::test
