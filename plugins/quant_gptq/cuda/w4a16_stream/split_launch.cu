// Choice and launch of a kernel of split_kernel.cuh.
#include "quant_gptq/cuda/device/cluster.h"
#include "quant_gptq/cuda/device/kernel_memory.h"
#include "quant_gptq/cuda/w4a16_stream/split_kernel.cuh"

namespace facet::linear {

namespace {

SplitKernel kernel_of(const Rows32& shape, int rows) {
  return rows <= 2 ? split_kernel_2(shape) : split_kernel_4(shape);
}

template <int ROWS>
int fixed_bytes(const StreamArgs& args) {
  const int sums = kGemvWarps + (args.splits > 1 ? args.depth * args.splits : 0);
  return kSplitBarrierBytes + split_input_bytes<ROWS>(args.block_chunks, args.shape.segments) +
         sums * ROWS * kUnitRows * 4;
}

}  // namespace

int split_fixed_bytes(const StreamArgs& args) {
  return args.rows <= 2 ? fixed_bytes<2>(args) : fixed_bytes<4>(args);
}

int split_max_slots() {
  return kGemvMaxSlots;
}

cudaError_t split_prepare(const Rows32& shape) {
  for (const int rows : {2, 4}) {
    const cudaError_t result = allow_all_shared(reinterpret_cast<const void*>(kernel_of(shape, rows)));
    if (result != cudaSuccess) return result;
  }
  return cudaSuccess;
}

int split_clusters(const Rows32& shape, int splits, int shared_per_block) {
  return clusters_at_once(kernel_of(shape, 4), splits, kSplitThreads, shared_per_block);
}

cudaError_t split_launch(const StreamArgs& args, int grid, int shared_bytes, bool dependent, cudaStream_t stream) {
  return launch_clusters(kernel_of(args.shape, args.rows),
                         {grid, args.splits, kSplitThreads, shared_bytes, dependent, stream}, args);
}

}  // namespace facet::linear
