// Reading weight views row by row, the plain way.
#pragma once

#include <span>

#include "facet/abi/weight.h"

namespace facet::linear {

// A row of one part.
struct PartRow {
  const abi::WeightView* part;
  std::int64_t row;  // inside the part
};

// The part that holds row `index` of the parts stacked along out_features. index is below their sum.
PartRow find_row(std::span<const abi::WeightView> parts, std::int64_t index);

// Code of one weight; int4 or int8.
std::uint8_t code_at(const abi::WeightView& view, std::int64_t row, std::int64_t column);

// out[in_features] = (code - zero) * scale, or the bf16 value; exact but for the one product.
void decode_row(const abi::WeightView& view, std::int64_t row, float* out);

}  // namespace facet::linear
