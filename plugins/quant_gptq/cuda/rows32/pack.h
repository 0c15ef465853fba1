// Shape and packing of the form of layout.h.
#pragma once

#include <string>

#include "facet/sdk/linear.h"
#include "quant_gptq/cuda/rows32/layout.h"

namespace facet::linear {

// The packed shape of an int4 or int8 problem that check_group() accepts.
Rows32 rows32_shape(const abi::LinearProblem& problem);

// Fills packed_bytes and packed_alignment, and gives the layout's name, e.g. "facet.w4.rows32.s128.sym.gate".
std::string rows32_sizes(const Rows32& shape, abi::LinearPlan& sizes);

// Packs the stacked parts in host memory, in parallel, and copies them to `packed` on the current device. Throws when
// `packed` is too small, the parts do not fit `problem`, or a copy fails.
void rows32_pack(const abi::LinearProblem& problem, const Rows32& shape, std::span<const abi::WeightView> parts,
                 abi::Memory packed, sdk::Host host);

// One unit, packed at `target`; what rows32_pack() does for each. Scales are divided by `factor`.
void rows32_pack_unit(const Rows32& shape, std::span<const abi::WeightView> parts, std::int64_t unit, float factor,
                      std::uint8_t* target);

// The factor of the scales of these parts: the power of two that brings the largest to [2^14, 2^15).
float rows32_factor(std::span<const abi::WeightView> parts);

}  // namespace facet::linear
