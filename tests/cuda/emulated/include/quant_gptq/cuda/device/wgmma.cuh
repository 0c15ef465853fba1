// What the header of this name does, by the emulated machine.
#pragma once

#include "facet/sdk/cuda/wgmma.cuh"

namespace facet::linear {

using facet::cuda::fewer_registers, facet::cuda::more_registers, facet::cuda::wgmma_matrix;
using facet::cuda::wgmma_commit, facet::cuda::wgmma_fence, facet::cuda::wgmma_sums_ready, facet::cuda::wgmma_wait;

template <int COLUMNS, bool ADD>
struct Wgmma {
  static void run(float (&d)[COLUMNS / 2], const std::uint32_t (&a)[4], std::uint64_t b) {
    emulated::product(emulated::Elements::bf16, COLUMNS, d, a, b, ADD);
  }
};

}  // namespace facet::linear
