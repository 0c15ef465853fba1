// What every CPU attention plugin accepts, offers and checks before it computes.
#pragma once

#include <cstdint>
#include <vector>

#include "facet/sdk/attention.h"

namespace facet::attention {

// The largest head_dim the kernels keep state for, and the step it comes in (half a vector of 16 floats).
inline constexpr std::int64_t kMaxHeadDim = 512;
inline constexpr std::int64_t kHeadDimStep = 8;

// Notes every reason why `problem` is not served: device, types, shape, layout.
void check_problem(const abi::AttentionProblem& problem, sdk::Reasons& reasons);

// All readable layouts. head_major leads: the rows of one head lie densely, so a key block is one stream of memory.
std::vector<abi::KvLayout> readable_layouts();

// Throws Failure(invalid_argument) unless the call fits the planned problem: same layout and shape, sizes within the
// plan, enough workspace, and every row that a query may see resident (case: a ring that is too short for
// window + chunk - 1 rows). `workspace_bytes` is what the plan asked for.
void check_call(const abi::AttentionProblem& problem, const abi::AttentionArgs& args, std::uint64_t workspace_bytes);

}  // namespace facet::attention
