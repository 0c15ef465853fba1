// Both copies of an exchange in one launch.
#include <algorithm>

#include "exchange.h"

namespace facet::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::uint64_t kMostBlocks = 128;  // of one copy

__device__ void copy(const Copy& what, unsigned block, unsigned blocks) {
  const std::uint64_t first = std::uint64_t{block} * kThreads + threadIdx.x;
  const std::uint64_t step = std::uint64_t{blocks} * kThreads;
  const auto misfit = reinterpret_cast<std::uintptr_t>(what.to) | reinterpret_cast<std::uintptr_t>(what.from);
  const std::uint64_t quads = misfit % sizeof(uint4) == 0 ? what.bytes / sizeof(uint4) : 0;
  for (std::uint64_t i = first; i < quads; i += step)
    static_cast<uint4*>(what.to)[i] = static_cast<const uint4*>(what.from)[i];
  for (std::uint64_t i = quads * sizeof(uint4) + first; i < what.bytes; i += step)
    static_cast<char*>(what.to)[i] = static_cast<const char*>(what.from)[i];
}

// Blocks [0, split) make the first copy, the others the second. Later kernels read a step's arrays before they wait for
// their predecessors, so nothing may begin until all is stored.
__global__ void copies_kernel(const Copy one, const Copy other, unsigned split) {
  if (blockIdx.x < split) {
    copy(one, blockIdx.x, split);
  } else {
    copy(other, blockIdx.x - split, gridDim.x - split);
  }
  __threadfence_system();
}

unsigned blocks_of(const Copy& copy) {
  constexpr std::uint64_t kBlockBytes = kThreads * sizeof(uint4);
  return static_cast<unsigned>(std::min(kMostBlocks, (copy.bytes + kBlockBytes - 1) / kBlockBytes));
}

}  // namespace

cudaError_t launch_copies(const Copy& first, const Copy& second, cudaStream_t stream) {
  const unsigned split = blocks_of(first);
  const unsigned blocks = split + blocks_of(second);
  if (blocks == 0) return cudaSuccess;
  copies_kernel<<<blocks, kThreads, 0, stream>>>(first, second, split);
  return cudaGetLastError();
}

}  // namespace facet::cuda
