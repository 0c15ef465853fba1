// Prefill with wgmma: launch for the head sizes it serves.
#include "attention/cuda/launch.cuh"
#include "attention/cuda/prefill_wgmma.cuh"

namespace facet::attention::cuda {

namespace {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    prefill_wgmma_kernel(const __grid_constant__ FlashParams params, const __grid_constant__ TensorMaps maps) {
  wait_for_predecessor();
  let_successor_begin();
  // Later tiles see more keys; they start first.
  const int row0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Shape::kRows;
  Work work;
  if (!find_rows_of_block<false>(params, work, row0, Shape::kRows)) return;
  const WgmmaMemory<Shape> memory(block_memory);
  if (threadIdx.x == 0) memory.init();
  __syncthreads();
  const TileWalk walk(params.kv, work, params.box_rows, Shape::kKeys);
  // 24 + 2 x 240 registers a thread of the three warpgroups are the whole register file.
  if (threadIdx.x < 128) {
    fewer_registers<24>();
    if (threadIdx.x == 0) produce<Shape>(params, maps, work, memory, walk);
  } else {
    more_registers<240>();
    WgmmaConsumer<Shape> consumer(params, work, memory, walk, static_cast<int>(threadIdx.x) / 128 - 1);
    consumer.run();
    consumer.write_output();
  }
}

template <int kDim>
inline constexpr bool kServed = kDim != 96;
using SharedShape = WgmmaShape<512, 128>;

template <typename Shape>
cudaError_t launch(const FlashParams& params, const TensorMaps& maps, const LaunchShape& shape,
                   std::int32_t max_new_tokens) {
  const std::int64_t rows = std::int64_t{max_new_tokens} * params.group;
  return launch_grid(prefill_wgmma_kernel<Shape>, params, shape,
                     static_cast<int>((rows + Shape::kRows - 1) / Shape::kRows), 1, Shape::kThreads,
                     Shape::kSharedBytes, maps);
}

}  // namespace

cudaError_t prepare_prefill_wgmma(std::int32_t head_dim, bool shared) {
  if (shared) return allow_shared(prefill_wgmma_kernel<SharedShape>, SharedShape::kSharedBytes);
  return for_head_dim(head_dim, [&]<int kDim>() {
    if constexpr (kServed<kDim>) {
      return allow_shared(prefill_wgmma_kernel<WgmmaShape<kDim>>, WgmmaShape<kDim>::kSharedBytes);
    } else {
      return cudaSuccess;
    }
  });
}

bool serves_prefill_wgmma(std::int32_t head_dim, bool shared) {
  return shared ? head_dim == SharedShape::kDim : head_dim % 64 == 0;
}

std::int32_t prefill_wgmma_keys(bool shared) {
  return shared ? SharedShape::kKeys : WgmmaShape<64>::kKeys;
}

cudaError_t launch_prefill_wgmma(const FlashParams& params, const TensorMaps& maps, const LaunchShape& shape,
                                 std::int32_t max_new_tokens) {
  if (shape.shared) return launch<SharedShape>(params, maps, shape, max_new_tokens);
  return for_head_dim(shape.head_dim, [&]<int kDim>() {
    if constexpr (kServed<kDim>) {
      return launch<WgmmaShape<kDim>>(params, maps, shape, max_new_tokens);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace facet::attention::cuda
