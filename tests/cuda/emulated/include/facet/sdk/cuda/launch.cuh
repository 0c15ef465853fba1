// What the header of this name does, by the emulated machine.
#pragma once

#include "emulated/device_code.h"

namespace facet::cuda {

using emulated::wait_for_predecessor;
inline void let_successor_begin() {}

}  // namespace facet::cuda
