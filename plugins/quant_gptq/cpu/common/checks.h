// What every CPU linear plugin checks before its own limits.
#pragma once

#include "facet/sdk/linear.h"

namespace facet::linear {

// Flags of abi::WeightFormat that a plugin takes.
struct Formats {
  bool bf16 = false;
  bool int8 = false;
  bool int4 = false;
};

// Device, element types, shapes, row range and weight format. Notes every reason against the problem.
void check_common(const abi::LinearProblem& problem, const Formats& formats, sdk::Reasons& reasons);

// Groups of the packed 16-row layout: a multiple of 32 inputs, or one group for the whole row.
void check_group(const abi::LinearProblem& problem, sdk::Reasons& reasons);

// Throws when a run breaks its plan: more rows than planned, or a workspace that is missing or too small.
void check_run(const abi::LinearArgs& args, std::int64_t max_rows, std::uint64_t workspace_bytes);

// Throws unless the parts have the shapes, format and grouping that the problem named.
void check_parts(const abi::LinearProblem& problem, std::span<const abi::WeightView> parts);

// Items of a parallel loop that a piece must hold at least, when an item reads `item_bytes` of weights for `rows` rows
// of x. Handing a piece to another thread costs about a microsecond; a piece should last a few.
std::int64_t loop_grain(std::int64_t item_bytes, std::int64_t rows);

}  // namespace facet::linear
