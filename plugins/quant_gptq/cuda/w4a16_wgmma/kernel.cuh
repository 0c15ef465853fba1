// A block of two or four multiplying warpgroups and four copying warps takes tiles of 128 or 256 rows of W by COLUMNS
// rows of x. A warp turns its 16 rows of codes to bf16 in registers, as wgmma's left operand; x comes by the tensor
// copy engine, in shared memory as wgmma reads it. Scales come onto the fp32 sums of a segment.
#pragma once

#include <cooperative_groups.h>

#include <iterator>

#include "quant_gptq/cuda/w4a16_wgmma/copy.cuh"
#include "quant_gptq/cuda/w4a16_wgmma/kernels.h"
#include "quant_gptq/cuda/w4a16_wgmma/multiply.cuh"

namespace facet::linear {

// Adds the sums of the cluster's blocks, in order, for this block's share of the tile.
template <typename T>
__device__ __forceinline__ void finish_cluster(const WgmmaArgs& a, const TileMemory<T>& m) {
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  const TileWalk walk(a);
  const float factor = *reinterpret_cast<const float*>(a.packed);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = walk.first % a.column_tiles * T::kColumns;
  const int first_unit = walk.first / a.column_tiles * T::kUnits;
  const int items = T::kUnits / 4 * min(T::kColumns, a.rows - first_row);
  const float* partials[kMostSplits];
#pragma unroll
  for (int split = 0; split < kMostSplits; ++split)
    partials[split] = cluster.map_shared_rank(reinterpret_cast<float*>(m.x), split < a.splits ? split : 0);
#pragma unroll 1
  for (int item = walk.rank + a.splits * (static_cast<int>(threadIdx.x) / 32); item < items;
       item += a.splits * (T::kConsumers / 32)) {
    const int unit = item % (T::kUnits / 4) * 4;
    const int column = item / (T::kUnits / 4);
    const int offset = column * T::kPartialStride + unit * kUnitRows;
    store_units<1, 4>(a, first_row + column, 0, first_unit + unit, lane, [&](int, int at) {
      float parts[kMostSplits];
#pragma unroll
      for (int split = 0; split < kMostSplits; ++split)
        parts[split] = split < a.splits ? partials[split][offset + at] : 0.0f;
      float sum = 0.0f;
#pragma unroll
      for (int split = 0; split < kMostSplits; ++split) sum += parts[split];
      return factor * sum;
    });
  }
}

template <typename T, int BITS, int SEGMENTS>
__global__ void __launch_bounds__(T::kThreads, 1)
    wgmma_kernel(const __grid_constant__ WgmmaArgs a, const __grid_constant__ CUtensorMap map) {
  namespace cg = cooperative_groups;
  const TileMemory<T> m(block_memory_1024, a);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < a.stages; ++stage) {
      barrier_init(m.full + 8 * stage, (a.tensor != 0 ? 1 : 2) * kCopyWarps);
      barrier_init(m.empty + 8 * stage, T::kConsumers / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  let_successor_begin();
  if (threadIdx.x < T::kConsumers) {
    more_registers<T::kMultiplyRegisters>();
    wait_for_predecessor();  // also before the first write
    Multiplier<T, BITS, SEGMENTS>(a, m).run();
    if (a.splits == 1) return;
    cg::this_cluster().sync();
    if (static_cast<int>(blockIdx.x) / a.splits < a.tiles) finish_cluster<T>(a, m);
    cg::this_cluster().sync();  // others may still read this block's sums
  } else {
    fewer_registers<T::kCopyRegisters>();
    Copier<T>(a, map, m).run();
    if (a.splits == 1) return;
    __syncwarp();
    cg::this_cluster().sync();
    cg::this_cluster().sync();
  }
}

template <typename T, int BITS>
WgmmaKernel wgmma_kernel_of(int segments) {
  if (segments == 1) return wgmma_kernel<T, BITS, 1>;
  return segments == 2 ? wgmma_kernel<T, BITS, 2> : wgmma_kernel<T, BITS, 4>;
}

template <typename T>
WgmmaKernel wgmma_kernel_of(const Rows32& shape) {
  return shape.bits == 8 ? wgmma_kernel_of<T, 8>(shape.segments) : wgmma_kernel_of<T, 4>(shape.segments);
}

// Of the forms with so many columns, from the I-th on.
template <int COLUMNS, std::size_t I = 0>
WgmmaKernel wgmma_kernel_of(const Rows32& shape, const TileForm& form) {
  if constexpr (I == std::size(kTileForms)) {
    return nullptr;
  } else {
    constexpr TileForm kForm = kTileForms[I];
    if constexpr (kForm.columns == COLUMNS) {
      if (form == kForm) return wgmma_kernel_of<Tile<COLUMNS, kForm.blocks, kForm.groups>>(shape);
    }
    return wgmma_kernel_of<COLUMNS, I + 1>(shape, form);
  }
}

}  // namespace facet::linear
