// How a warpgroup product is told where its operand lies in shared memory. For device code.
#pragma once

#include <cstdint>

namespace facet::cuda {

// The upper half of every such descriptor: the 128-byte swizzle, 8 rows of 128 bytes apart.
inline constexpr std::uint32_t kWgmmaMatrixHigh = (1u << 30) | (1024 >> 4);

// Descriptor of an operand in shared memory: panels of 128 bytes a row in the 128-byte swizzle, so that 8 rows are 1024
// bytes. `address` is a multiple of that, plus 32 for each step of 32 bytes along the depth when the depth runs within
// the rows; then leading_bytes is not used. When the rows lie along the depth it is the distance of two panels.
// Addresses count in 16 bytes in it: adding n moves it by 16 n bytes.
__device__ __forceinline__ std::uint64_t wgmma_matrix(std::uint32_t address, std::uint32_t leading_bytes = 16) {
  return (static_cast<std::uint64_t>(kWgmmaMatrixHigh) << 32) | (static_cast<std::uint64_t>(leading_bytes >> 4) << 16) |
         static_cast<std::uint64_t>((address & 0x3ffffu) >> 4);
}

}  // namespace facet::cuda
