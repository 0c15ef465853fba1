// Choice and launch of a kernel of wide_kernel.cuh.
#include "quant_gptq/cuda/device/cluster.h"
#include "quant_gptq/cuda/device/kernel_memory.h"
#include "quant_gptq/cuda/w4a16_stream/wide_kernel.cuh"

namespace facet::linear {

cudaError_t wide_prepare(const Rows32& shape) {
  return allow_all_shared(reinterpret_cast<const void*>(wide_kernel_of(shape)));
}

int wide_clusters(const Rows32& shape, int splits, int shared_per_block) {
  return clusters_at_once(wide_kernel_of(shape), splits, kWideThreads, shared_per_block);
}

cudaError_t wide_launch(const WideArgs& args, const CUtensorMap& map, int grid, int shared_bytes, bool dependent,
                        cudaStream_t stream) {
  return launch_clusters(wide_kernel_of(args.shape),
                         {grid, 1 << args.split_shift, kWideThreads, shared_bytes, dependent, stream}, args, map);
}

}  // namespace facet::linear
