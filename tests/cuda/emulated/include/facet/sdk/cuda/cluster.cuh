// What the header of this name does, by the emulated machine.
#pragma once

#include "emulated/device_code.h"

namespace facet::cuda {

using emulated::cluster_address, emulated::cluster_arrive, emulated::cluster_wait;

inline void cluster_arrive_aligned() {
  emulated::warp_sync(~0u);
  emulated::cluster_arrive();
}
inline void cluster_wait_aligned() {
  emulated::warp_sync(~0u);
  emulated::cluster_wait();
}

}  // namespace facet::cuda
