// What the header of this name does, by the emulated machine.
#pragma once

#include "facet/sdk/cuda/wgmma.cuh"

namespace facet::attention::cuda {

using ::facet::cuda::fewer_registers, ::facet::cuda::more_registers, ::facet::cuda::wgmma_matrix;
using ::facet::cuda::wgmma_commit, ::facet::cuda::wgmma_fence, ::facet::cuda::wgmma_wait;

template <int kColumns>
struct ScoreProduct {
  static void run(float (&d)[kColumns / 2], std::uint64_t a, std::uint64_t b, bool add) {
    emulated::product_of_matrices(kColumns, d, a, b, add);
  }
};

template <int kColumns>
struct ValueProduct {
  static void run(float (&d)[kColumns / 2], const std::uint32_t (&a)[4], std::uint64_t b) {
    emulated::product(emulated::Elements::bf16, kColumns, d, a, b, true, emulated::Lines::inputs);
  }
};

}  // namespace facet::attention::cuda
