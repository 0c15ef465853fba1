// Prefill: tiles of 64 packed rows of one sequence.
#include "attention/cuda/mma_kernel.cuh"

namespace facet::attention::cuda {

cudaError_t prepare_prefill(std::int32_t head_dim, bool int8) {
  return for_head_dim(head_dim, [&]<int kDim>() {
    return int8 ? prepare_mma<MmaShape<kDim, kPrefillRows, true>>()
                : prepare_mma<MmaShape<kDim, kPrefillRows, false>>();
  });
}

cudaError_t launch_prefill(const FlashParams& params, const LaunchShape& shape, std::int32_t max_new_tokens) {
  const std::int64_t rows = std::int64_t{max_new_tokens} * params.group;
  const auto tiles = static_cast<std::int32_t>((rows + kPrefillRows - 1) / kPrefillRows);
  return for_head_dim(shape.head_dim, [&]<int kDim>() {
    return shape.int8 ? launch_mma<MmaShape<kDim, kPrefillRows, true>>(params, shape, tiles)
                      : launch_mma<MmaShape<kDim, kPrefillRows, false>>(params, shape, tiles);
  });
}

}  // namespace facet::attention::cuda
