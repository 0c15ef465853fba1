// The packed form that w4a16, w4a8 and dequant_gemm share, so that one copy of the weights serves all three.
// No inline functions here: kernels include it, see CMakeLists.txt.
//
// Rows of W are taken 16 at a time (a block), inputs in segments of S = 32, 64 or 128: the largest of them that divides
// the group. A segment has one scale a row, so larger groups repeat theirs. A block is
//
//   segments x { vectors of 64 bytes, 16 scales (float) }, then, asymmetric only, segments x 16 zero codes (uint8),
//
// each padded to 64 bytes. In a vector, 4-byte lane r belongs to row r of the block. Vector j of a segment holds
//
//   int4: byte i of the lane = input 8j+i in the low nibble, input 8j+4+i in the high one     (S/8 vectors)
//   int8: byte i of the lane = input 4j+i                                                      (S/4 vectors)
//
// which is what vpdpbusd wants: four inputs of one row side by side. Inputs past in_features and rows past out_features
// hold codes that mean zero. Scales stay float: that is exact for scales of any origin and costs 3 % of the bytes
// against bf16 at groups of 128.
#pragma once

#include <cstdint>

namespace facet::linear {

inline constexpr std::int64_t kBlockRows = 16;

struct Rows16 {
  const std::uint8_t* data;
  std::int64_t out_features;
  std::int64_t in_features;
  std::int64_t segments;       // ceil(in_features / segment)
  std::int64_t segment;        // inputs in a segment
  std::int64_t segment_bytes;  // vectors and scales
  std::int64_t zeros_offset;   // of the zero codes in a block; 0 when symmetric
  std::int64_t block_bytes;
  std::int32_t mean;  // zero code of symmetric weights: 8 or 128
  std::int32_t bits;  // 4 or 8
};

}  // namespace facet::linear
