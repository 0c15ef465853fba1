// Decode: sequences with at most 16 packed rows, their keys split over blocks.
#include "attention/cuda/mma_kernel.cuh"

namespace facet::attention::cuda {

cudaError_t prepare_decode(std::int32_t head_dim, bool int8) {
  return for_head_dim(head_dim, [&]<int kDim>() {
    return int8 ? prepare_mma<MmaShape<kDim, kDecodeRows, true>>() : prepare_mma<MmaShape<kDim, kDecodeRows, false>>();
  });
}

cudaError_t launch_decode(const FlashParams& params, const LaunchShape& shape) {
  return for_head_dim(shape.head_dim, [&]<int kDim>() {
    return shape.int8 ? launch_mma<MmaShape<kDim, kDecodeRows, true>>(params, shape, params.splits)
                      : launch_mma<MmaShape<kDim, kDecodeRows, false>>(params, shape, params.splits);
  });
}

}  // namespace facet::attention::cuda
