// What the header of this name does, by the emulated machine.
#pragma once

#include "facet/sdk/cuda/async.cuh"

namespace facet::cuda {

using emulated::barrier_init, emulated::barrier_expect, emulated::barrier_test, emulated::barrier_wait;

inline void barrier_init_fence() {}
inline void barrier_arrive(std::uint32_t barrier) {
  emulated::barrier_arrive(barrier, false);
}
inline void barrier_arrive_remote(std::uint32_t barrier) {
  emulated::barrier_arrive(barrier, true);
}
inline void barrier_wait_cluster(std::uint32_t barrier, std::uint32_t parity) {
  emulated::barrier_wait(barrier, parity);
}
inline void named_sync(int id, int threads) {
  emulated::named_barrier(id, threads, true);
}
inline void named_arrive(int id, int threads) {
  emulated::named_barrier(id, threads, false);
}

}  // namespace facet::cuda
