// What the kernels use of the header of this name, by the emulated machine.
#pragma once

#include "emulated/device_code.h"

namespace cooperative_groups {

class cluster_group {
 public:
  void sync() const {
    facet::emulated::cluster_arrive();
    facet::emulated::cluster_wait();
  }
  template <typename T>
  T* map_shared_rank(T* pointer, int rank) const {
    return static_cast<T*>(facet::emulated::cluster_pointer(pointer, static_cast<std::uint32_t>(rank)));
  }
};

inline cluster_group this_cluster() {
  return {};
}

}  // namespace cooperative_groups
