// What the header of this name does, by the emulated machine.
#pragma once

#include <cstdint>

#include "emulated/device_code.h"

namespace facet::cuda {

using emulated::shared_address;

// Memory has one order here.
inline void async_fence() {}
inline void async_fence_shared() {}
inline void async_fence_global() {}

}  // namespace facet::cuda
