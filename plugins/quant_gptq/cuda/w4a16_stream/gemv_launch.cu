// Choice and launch of a kernel of gemv_kernel.cuh.
#include <algorithm>

#include "quant_gptq/cuda/device/kernel_memory.h"
#include "quant_gptq/cuda/w4a16_stream/gemv_kernel.cuh"

namespace facet::linear {

namespace {

GemvKernel kernel_of(const Rows32& shape, int rows, bool norm) {
  return rows == 1 ? gemv_kernel_1(shape, norm) : gemv_kernel_2(shape, norm);
}

}  // namespace

int gemv_page_bytes(const Rows32& shape) {
  return kGemvWarps * shape.chunk_bytes;
}

int gemv_fixed_bytes(const Rows32& shape, int rows) {
  return rows == 1 ? gemv_fixed<1>(shape.chunks, shape.segments) : gemv_fixed<2>(shape.chunks, shape.segments);
}

int gemv_max_slots(const Rows32& shape) {
  // The warp that adds up a unit may be a ring and the pages in registers behind; its partial sums must outlast that.
  // They then do, by way of three barriers: it has read them before it arrives at a later page, for which the copy of a
  // page a ring on waits, for which the warps wait that write the next sums there.
  const int pages = (shape.chunks + kGemvWarps - 1) / kGemvWarps;
  return std::min(kGemvMaxSlots, kGemvDepth * pages - 2);
}

cudaError_t gemv_prepare(const Rows32& shape, bool norm) {
  for (const int rows : {1, 2}) {
    const cudaError_t result = allow_all_shared(reinterpret_cast<const void*>(kernel_of(shape, rows, norm)));
    if (result != cudaSuccess) return result;
  }
  return cudaSuccess;
}

cudaError_t gemv_launch(const StreamArgs& args, int grid, int shared_bytes, bool dependent, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(kGemvThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  if (dependent) {
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  return cudaLaunchKernelEx(&config, kernel_of(args.shape, args.rows, args.residual.hidden != nullptr), args);
}

}  // namespace facet::linear
