// What facet bench --profile makes of a trace.
#include "bench_profile.h"

#include <gtest/gtest.h>

namespace facet::cli {
namespace {

using gemma4::PartCost;
using gemma4::StepPart;

std::vector<PartCost> no_costs() {
  return std::vector<PartCost>(static_cast<std::size_t>(StepPart::count));
}

constexpr auto kDown = static_cast<std::int32_t>(StepPart::down);
constexpr auto kHead = static_cast<std::int32_t>(StepPart::head);

TEST(BenchProfile, PartsAndKernelsAddUpToTheStep) {
  // Two steps of 10 us with 2 us between; the second kernel begins while the first still runs.
  const std::vector<KernelTime> kernels = {
      {"_Z4downi", 1000, 5000, kDown},   {"_Z4headi", 3000, 11000, kHead},  {"_Z4copyv", 12000, 12500, -1},
      {"_Z4downi", 13000, 17000, kDown}, {"_Z4headi", 16000, 23000, kHead},
  };
  std::vector<PartCost> costs = no_costs();
  costs[kDown] = {8e3, 1e6};
  costs[kHead] = {1e3, 12e6};
  const Json profile = profile_json(kernels, 2, costs, {4e9, 4e12});
  EXPECT_DOUBLE_EQ(profile["us_per_step"].get<double>(), 11);
  ASSERT_EQ(profile["parts"].size(), 3u) << profile.dump(2);
  const Json &down = profile["parts"][0], &head = profile["parts"][1], &other = profile["parts"][2];
  EXPECT_EQ(down["part"], "down");
  EXPECT_DOUBLE_EQ(down["us_per_step"].get<double>(), 4);
  EXPECT_DOUBLE_EQ(down["floor_us"].get<double>(), 2) << "of its bytes";
  EXPECT_DOUBLE_EQ(down["share_of_floor"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(down["gb_per_s"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(head["us_per_step"].get<double>(), 6);
  EXPECT_DOUBLE_EQ(head["floor_us"].get<double>(), 3) << "of its operations";
  EXPECT_DOUBLE_EQ(head["tflop_per_s"].get<double>(), 2);
  EXPECT_EQ(other["part"], "other kernels");
  EXPECT_DOUBLE_EQ(other["us_per_step"].get<double>(), 0.25);
  double parts = 0, by_kernel = 0;
  for (const Json& row : profile["parts"]) parts += row["us_per_step"].get<double>();
  for (const Json& row : profile["kernels"]) by_kernel += row["us_per_step"].get<double>();
  EXPECT_DOUBLE_EQ(parts, by_kernel);
  // The longest of the pauses, 1 and 0.5 us, counts as the one between the steps.
  EXPECT_DOUBLE_EQ(profile["us_between_steps"].get<double>(), 1);
  EXPECT_DOUBLE_EQ(parts + 0.5 * 1 + profile["us_idle_inside"].get<double>(), 11);
}

TEST(BenchProfile, WithoutRatesOrPartsNothingIsMadeUp) {
  std::vector<KernelTime> kernels = {{"_Z4downi", 0, 4000, kDown}};
  const Json unknown = profile_json(kernels, 1, no_costs(), {});
  ASSERT_EQ(unknown["parts"].size(), 1u);
  EXPECT_TRUE(unknown["parts"][0]["floor_us"].is_null());
  EXPECT_TRUE(unknown["parts"][0]["share_of_floor"].is_null());
  EXPECT_TRUE(unknown["us_between_steps"].is_null());
  kernels[0].part = -1;
  EXPECT_TRUE(profile_json(kernels, 1, no_costs(), {1e9, 1e9})["parts"].is_null());
  EXPECT_TRUE(profile_json({}, 1, no_costs(), {1e9, 1e9}).is_null());
}

}  // namespace
}  // namespace facet::cli
