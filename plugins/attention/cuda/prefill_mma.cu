// Prefill with mma.sync: tiles of 64 packed rows of one sequence.
#include "attention/cuda/launch.cuh"
#include "attention/cuda/mma_block.cuh"

namespace facet::attention::cuda {

namespace {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) prefill_mma_kernel(const __grid_constant__ FlashParams params) {
  wait_for_predecessor();
  let_successor_begin();
  // Later tiles see more keys; they start first.
  const int row0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Shape::kRows;
  Work work;
  if (!find_rows_of_block<false>(params, work, row0, Shape::kRows)) return;
  MmaBlock<Shape> block(params, work, block_memory);
  block.run();
  block.write_output();
}

// Two blocks an SM where two stages leave room.
template <typename Shape>
constexpr int kStages = Shape::kMostStages < 2 ? Shape::kMostStages : 2;

template <typename Shape>
cudaError_t prepare() {
  return allow_shared(prefill_mma_kernel<Shape>, Shape::shared_bytes(kStages<Shape>));
}

template <typename Shape>
cudaError_t launch(FlashParams params, const LaunchShape& shape, std::int32_t max_new_tokens) {
  const std::int64_t rows = std::int64_t{max_new_tokens} * params.group;
  params.stages = kStages<Shape>;
  return launch_grid(prefill_mma_kernel<Shape>, params, shape,
                     static_cast<int>((rows + Shape::kRows - 1) / Shape::kRows), 1, Shape::kThreads,
                     Shape::shared_bytes(params.stages));
}

}  // namespace

cudaError_t prepare_prefill(std::int32_t head_dim, bool shared, bool int8) {
  if (shared) {
    return for_shared_head_dim(
        head_dim, [&]<int kDim, int kKeys>() { return prepare<MmaShape<kDim, kPrefillRows, false, kKeys>>(); });
  }
  return for_head_dim(head_dim, [&]<int kDim>() {
    return int8 ? prepare<MmaShape<kDim, kPrefillRows, true>>() : prepare<MmaShape<kDim, kPrefillRows, false>>();
  });
}

cudaError_t launch_prefill(const FlashParams& params, const LaunchShape& shape, std::int32_t max_new_tokens) {
  if (shape.shared) {
    return for_shared_head_dim(shape.head_dim, [&]<int kDim, int kKeys>() {
      return launch<MmaShape<kDim, kPrefillRows, false, kKeys>>(params, shape, max_new_tokens);
    });
  }
  return for_head_dim(shape.head_dim, [&]<int kDim>() {
    return shape.int8 ? launch<MmaShape<kDim, kPrefillRows, true>>(params, shape, max_new_tokens)
                      : launch<MmaShape<kDim, kPrefillRows, false>>(params, shape, max_new_tokens);
  });
}

}  // namespace facet::attention::cuda
