// What the header of this name does, by the emulated machine.
#pragma once

#include "emulated/device_code.h"

namespace facet::cuda {

// Stand for arrays.
template <std::uint32_t ALIGNMENT>
struct BlockMemory {
  operator unsigned char*() const { return emulated::block_memory(ALIGNMENT); }
};
inline constexpr BlockMemory<16> block_memory;
inline constexpr BlockMemory<128> block_memory_128;
inline constexpr BlockMemory<1024> block_memory_1024;

using emulated::block_flag;

}  // namespace facet::cuda
