#include "tensor_map.h"

#include <cstring>

namespace facet::emulated {

namespace {

constexpr std::uint32_t kElementBytes = 2;

// Bits 4 to 6 of an address in the 128-byte swizzle: flipped by bits 7 to 9.
std::uint32_t swizzled(std::uint32_t address) {
  return address ^ (address >> 7 & 7) << 4;
}

}  // namespace

std::uint32_t box_bytes(const TensorMap& map) {
  std::uint32_t bytes = kElementBytes;
  for (std::uint32_t i = 0; i < map.dimensions; ++i) bytes *= map.box[i];
  return bytes;
}

void copy_box(const TensorMap& map, const std::array<int, 5>& at, std::uint32_t offset, unsigned char* target) {
  const std::uint32_t row_bytes = map.box[0] * kElementBytes;
  const std::uint32_t rows = box_bytes(map) / row_bytes;
  for (std::uint32_t row = 0; row < rows; ++row) {
    const unsigned char* source = map.data;
    bool inside = true;
    std::uint32_t rest = row;
    for (std::uint32_t i = 1; i < map.dimensions; ++i) {
      const std::int64_t place = std::int64_t{at[i]} + rest % map.box[i];
      rest /= map.box[i];
      inside = inside && place >= 0 && place < static_cast<std::int64_t>(map.sizes[i]);
      source += inside ? place * static_cast<std::int64_t>(map.strides[i - 1]) : 0;
    }
    for (std::uint32_t byte = 0; byte < row_bytes; byte += kElementBytes) {
      const std::int64_t place = at[0] + std::int64_t{byte / kElementBytes};
      const std::uint32_t to = swizzled(offset + row * row_bytes + byte) - offset;
      if (inside && place >= 0 && place < static_cast<std::int64_t>(map.sizes[0])) {
        std::memcpy(target + to, source + place * kElementBytes, kElementBytes);
      } else {
        std::memset(target + to, 0, kElementBytes);
      }
    }
  }
}

}  // namespace facet::emulated
