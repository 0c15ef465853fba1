// What the header of this name does, by the emulated machine.
#pragma once

#include "facet/sdk/cuda/async.cuh"
#include "facet/sdk/cuda/matrix.cuh"

namespace facet::cuda {

inline void wgmma_fence() {
  emulated::product_fence();
}
inline void wgmma_commit() {
  emulated::product_commit();
}
template <int PENDING>
void wgmma_wait() {
  emulated::product_wait(PENDING);
}
template <typename T, int COUNT>
void wgmma_sums_ready(T (&)[COUNT]) {}

// Registers are not counted here.
template <int COUNT>
void more_registers() {}
template <int COUNT>
void fewer_registers() {}

}  // namespace facet::cuda
