// What attention plugins of every device ask of a problem's heads and layout, and of a call's view; none of it reads
// the arrays of a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "facet/sdk/attention.h"

namespace facet::attention {

// Throws Failure(invalid_argument) with the text unless `holds`.
template <typename... Args>
void require(bool holds, const Args&... text) {
  if (!holds) sdk::fail(abi::Status::invalid_argument, text...);
}

// Both counts positive, and whole groups of query heads.
void check_heads(const abi::AttentionProblem& problem, sdk::Reasons& reasons);

// Throws Failure(invalid_argument) unless heads, sizes and form of the view are the planned ones; a shared row is one.
void check_rows(const abi::AttentionProblem& problem, const abi::KvView& view);

// Every member of the layout but its alignment. `elements` are the types the kernel reads, `otherwise` ends the reason
// against another: "KV element f16 is <otherwise>".
void check_layout(const abi::KvLayout& layout, std::span<const abi::DType> elements, const char* otherwise,
                  sdk::Reasons& reasons);

// Every addressing and order of these elements, best first. head_major leads: the rows of one head lie densely.
std::vector<abi::KvLayout> layouts_of(std::span<const abi::DType> elements);

// Throws Failure(invalid_argument) unless counts, layout, shape and workspace fit the planned problem and, when there
// are tokens, no pointer that is needed is null.
void check_view(const abi::AttentionProblem& problem, const abi::AttentionArgs& args, std::uint64_t workspace_bytes);

}  // namespace facet::attention
