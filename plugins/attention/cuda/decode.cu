// Decode: sequences with at most 16 packed rows, their keys split over blocks. Whole keys.
#include "attention/cuda/decode_kernel.cuh"

namespace facet::attention::cuda {

namespace {

template <int kDim, bool kInt8>
using Shape = DecodeShape<kDim, kInt8, false>;
template <int kDim, bool kInt8>
using Preparing = DecodeShape<kDim, kInt8, true>;
template <int kDim, bool kPrepares>
using Few = DecodeShape<kDim, false, kPrepares, 0, kFewRows>;
template <int kDim, bool kPrepares>
using FewBeside = DecodeShape<kDim, false, kPrepares, 0, kFewRows, true>;

// So many sequences leave processors free, where the block of the product that follows would be kept from its place.
// A step of the 12B's shape takes 2.46 ms instead of 2.51 for one, 3.00 instead of 3.09 for two; from four on the
// registers are worth more.
constexpr std::int32_t kSequencesBeside = 2;

}  // namespace

cudaError_t prepare_decode(std::int32_t head_dim, bool int8, DecodeLimits& limits, DecodeLimits& few) {
  return for_head_dim(head_dim, [&]<int kDim>() {
    if constexpr (serves_few_rows(kDim, 0, false)) {
      cudaError_t error = int8 ? cudaSuccess : prepare_shapes<FewBeside<kDim, false>, FewBeside<kDim, true>>(few);
      if (error == cudaSuccess && !int8) error = prepare_shapes<Few<kDim, false>, Few<kDim, true>>(few);
      if (error != cudaSuccess) return error;
    }
    return int8 ? prepare_shapes<Shape<kDim, true>, Preparing<kDim, true>>(limits)
                : prepare_shapes<Shape<kDim, false>, Preparing<kDim, false>>(limits);
  });
}

cudaError_t launch_decode(const FlashParams& params, const LaunchShape& shape) {
  return for_head_dim(shape.head_dim, [&]<int kDim>() {
    if constexpr (serves_few_rows(kDim, 0, false)) {
      if (shape.few && shape.sequences <= kSequencesBeside)
        return launch_shapes<FewBeside<kDim, false>, FewBeside<kDim, true>>(params, shape);
      if (shape.few) return launch_shapes<Few<kDim, false>, Few<kDim, true>>(params, shape);
    }
    return shape.int8 ? launch_shapes<Shape<kDim, true>, Preparing<kDim, true>>(params, shape)
                      : launch_shapes<Shape<kDim, false>, Preparing<kDim, false>>(params, shape);
  });
}

}  // namespace facet::attention::cuda
