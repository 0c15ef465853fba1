// What the tensor copy engine is told of a tensor.
#pragma once

#include <array>
#include <cstdint>

namespace facet::emulated {

inline constexpr std::uint64_t kTensorMapMark = 0x7e4507ab7e4507abu;

// In the opaque bytes of a CUtensorMap: 2-byte elements, rows of a box of 128 bytes in the 128-byte swizzle.
struct TensorMap {
  std::uint64_t mark = 0;
  const unsigned char* data = nullptr;
  std::uint32_t dimensions = 0;
  std::array<std::uint32_t, 5> box{};
  std::array<std::uint64_t, 5> sizes{};
  std::array<std::uint64_t, 4> strides{};  // in bytes, of all dimensions but the first
};
static_assert(sizeof(TensorMap) <= 128);

std::uint32_t box_bytes(const TensorMap& map);
// The box from element `at` on; what lies outside is zero. `offset`: of the target in shared memory.
void copy_box(const TensorMap& map, const std::array<int, 5>& at, std::uint32_t offset, unsigned char* target);

}  // namespace facet::emulated
