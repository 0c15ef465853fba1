// Decode with the shared form of the cache: one row of a tile holds a value and the channels of its key that turn.
#include "attention/cuda/decode_kernel.cuh"

namespace facet::attention::cuda {

cudaError_t prepare_decode_shared(std::int32_t head_dim, DecodeLimits& limits) {
  return for_shared_head_dim(head_dim, [&]<int kDim, int kKeys>() {
    return prepare_shapes<DecodeShape<kDim, false, false, kKeys>, DecodeShape<kDim, false, true, kKeys>>(limits);
  });
}

cudaError_t launch_decode_shared(const FlashParams& params, const LaunchShape& shape) {
  return for_shared_head_dim(shape.head_dim, [&]<int kDim, int kKeys>() {
    return launch_shapes<DecodeShape<kDim, false, false, kKeys>, DecodeShape<kDim, false, true, kKeys>>(params, shape);
  });
}

}  // namespace facet::attention::cuda
