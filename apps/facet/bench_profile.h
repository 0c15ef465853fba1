// facet bench --profile: which kernels the time of a step goes to.
#pragma once

#include <cstdint>
#include <vector>

#include "common.h"
#include "facet/backend/backend.h"

namespace facet::cli {

// kernels: of `steps` steps, in the order of their ends. A kernel's time runs from the end of the one before it (from
// its own start where the device stood idle), so that the times of kernels that overlap add up to the whole.
// {"steps", "us_per_step", "us_between_steps" (null for one step), "us_idle_inside", "kernels": [{"kernel", "calls",
//  "us_each", "us_per_step", "share"}]}, calls and times of one step, kernels with the most time first.
Json profile_json(const std::vector<KernelTime>& kernels, std::int64_t steps);
void print_profile(const char* title, const Json& profile);

}  // namespace facet::cli
