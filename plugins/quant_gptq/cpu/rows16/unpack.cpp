#include "rows16/unpack.h"

#include <cstring>

namespace facet::linear {

void unpack_segment(const Rows16& weights, std::int64_t block, std::int64_t segment, SegmentCodes& out) {
  const std::uint8_t* base = weights.data + block * weights.block_bytes;
  const std::uint8_t* vectors = base + segment * weights.segment_bytes;
  std::memcpy(out.scales, vectors + weights.segment_bytes - 64, sizeof out.scales);
  int zeros[kBlockRows];
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane)
    zeros[lane] = weights.zeros_offset != 0 ? base[weights.zeros_offset + segment * kBlockRows + lane] : weights.mean;
  const std::int64_t step = weights.bits == 4 ? 8 : 4;
  const int mask = weights.bits == 4 ? 15 : 255;
  for (std::int64_t k = 0; k < weights.segment; ++k) {
    const std::uint8_t* bytes = vectors + k / step * 64 + k % 4;
    const int shift = k % step >= 4 ? 4 : 0;
    for (std::int64_t lane = 0; lane < kBlockRows; ++lane)
      out.values[k][lane] = static_cast<float>(((bytes[4 * lane] >> shift) & mask) - zeros[lane]);
  }
}

}  // namespace facet::linear
