// Shape and packing of the form of rows16.h.
#pragma once

#include <string>

#include "facet/sdk/linear.h"
#include "rows16/rows16.h"

namespace facet::linear {

// The packed shape of an int4 or int8 problem that check_group() accepts; data is null.
Rows16 rows16_shape(const abi::LinearProblem& problem);

std::int64_t rows16_blocks(const Rows16& shape);
// in_features rounded up to whole segments: what activations are padded to.
std::int64_t rows16_padded_inputs(const Rows16& shape);

// Blocks of a piece of a parallel loop at least: enough work for `rows` rows of x, and whole tiles of four blocks.
std::int64_t rows16_grain(const Rows16& shape, std::int64_t rows);

// Fills packed_bytes and packed_alignment, and gives the layout's name, e.g. "facet.w4.rows16.s128.sym".
std::string rows16_sizes(const Rows16& shape, abi::LinearPlan& sizes);

// Packs the stacked parts, in parallel over blocks. Throws when `packed` is too small or the parts do not fit
// `problem`.
void rows16_pack(const abi::LinearProblem& problem, const Rows16& shape, std::span<const abi::WeightView> parts,
                 abi::Memory packed, sdk::Host host);

}  // namespace facet::linear
