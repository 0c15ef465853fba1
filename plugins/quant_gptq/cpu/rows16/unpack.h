// Reading the packed form back, the plain way.
#pragma once

#include "rows16/rows16.h"

namespace facet::linear {

struct SegmentCodes {
  alignas(64) float values[128][kBlockRows];  // code - zero by [input][row of the block]
  alignas(64) float scales[kBlockRows];
};

void unpack_segment(const Rows16& weights, std::int64_t block, std::int64_t segment, SegmentCodes& out);

}  // namespace facet::linear
