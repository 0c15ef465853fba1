// facet bench --profile: which parts and kernels the time of a step goes to.
#pragma once

#include <cstdint>
#include <vector>

#include "common.h"
#include "facet/backend/backend.h"
#include "gemma4/step_parts.h"

namespace facet::cli {

// The device's limits, 0 where they are not known.
struct DeviceRates {
  double bytes = 0;       // read a second
  double operations = 0;  // of products a second
};

// kernels: of `steps` steps, in the order of their ends. A kernel's time runs from the end of the one before it (from
// its own start where the device stood idle), so that the times of kernels that overlap add up to the whole.
// {"steps", "us_per_step", "us_between_steps" (null for one step), "us_idle_inside",
//  "parts": [{"part", "us_per_step", "share", "mb", "gflop", "gb_per_s", "tflop_per_s", "floor_us" (of bytes or
//  operations, whichever takes longer at `rates`; null without them), "share_of_floor"}] in the order of a step, the
//  last without costs for what belongs to none; null when the kernels have no parts,
//  "kernels": [{"kernel", "calls", "us_each", "us_per_step", "share"}]}, all of one step, kernels with the most time
// first. costs: of one step, by part.
Json profile_json(const std::vector<KernelTime>& kernels, std::int64_t steps,
                  const std::vector<gemma4::PartCost>& costs, const DeviceRates& rates);
void print_profile(const char* title, const Json& profile);

}  // namespace facet::cli
