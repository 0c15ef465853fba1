// What attention/flash_cuda accepts, offers and checks before it launches.
#pragma once

#include <vector>

#include "facet/sdk/attention.h"

namespace facet::attention::cuda {

// Notes every reason why `problem` is not served: device, types, shape, layout.
void check_problem(const abi::AttentionProblem& problem, sdk::Reasons& reasons);

// All readable layouts. head_major leads: the rows of one head lie densely, so a tile is one stream of memory.
std::vector<abi::KvLayout> readable_layouts();

// Throws Failure(invalid_argument) unless the call fits the planned problem: same layout and shape, bounds within the
// plan, enough workspace, aligned pointers. Arrays lie on the device and are not read.
void check_call(const abi::AttentionProblem& problem, const abi::AttentionArgs& args, std::uint64_t workspace_bytes);

}  // namespace facet::attention::cuda
