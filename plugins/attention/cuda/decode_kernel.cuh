// The decode kernel for one shape, and its launch.
//
// The blocks of a cluster put O, largest scores and sums into their shared memory; each then folds a slice of the
// columns over all of them. With one cluster a (sequence, KV head) that is the output. With more, the last cluster to
// arrive at a slice folds the slices of all in their order, so that no sum depends on who came when.
#pragma once

#include <algorithm>

#include "attention/cuda/decode_few_block.cuh"
#include "attention/cuda/launch.cuh"

namespace facet::attention::cuda {

// Columns [column0, column0 + columns) of every row, folded over the blocks of this cluster that have keys.
template <typename Shape>
class SliceFold {
 public:
  __device__ SliceFold(const FlashParams& params, const DecodeBlock<Shape>& block)
      : p_(params), work_(block.work()), block_(block) {
    const int cluster = params.cluster;
    const int shift = log2_of(cluster);
    shift_ = shift;
    rank_ = static_cast<int>(blockIdx.x) & (cluster - 1);
    index_ = static_cast<int>(blockIdx.x) >> shift;
    clusters_ = (work_.parts + cluster - 1) >> shift;
    most_clusters_ = params.splits >> shift;
    members_ = min(cluster, work_.parts - index_ * cluster);
    columns_ = Shape::kDim >> shift;
    quads_ = columns_ / 4;
  }

  // The cluster's blocks have published.
  __device__ void run() {
    // Few columns of few rows: the members of a sum are read by as many lanes.
    if (work_.rows * quads_ * p_.cluster <= Shape::kThreads) {
      fold_side_by_side();
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < work_.rows * quads_; i += Shape::kThreads) fold_members(i);
    }
    if (clusters_ > 1) fold_clusters();
  }

 private:
  // Floats of a slice: sums, then largest score and sum of weights of every row.
  __device__ float* slice(int cluster) const {
    const std::int64_t pair = work_.sequence * static_cast<int>(gridDim.y) + work_.head;
    const std::int64_t at = pair * most_clusters_ + cluster;
    return p_.parts + at * kPartFloats<Shape::kDim> + rank_ * (Shape::kRows * (columns_ + 2));
  }
  __device__ void write(int row, int quad, float4 sum, float weights) const {
    const float scale = weights > 0.0f ? 1.0f / weights : 0.0f;
    const int in_step = row_token(p_, row);
    const std::int64_t token = work_.token_begin + in_step;
    const int head = work_.head * p_.group + row - in_step * p_.group;
    auto* to = reinterpret_cast<std::uint32_t*>(static_cast<__nv_bfloat16*>(p_.output) + token * p_.output_stride +
                                                head * Shape::kDim + rank_ * columns_ + quad * 4);
    to[0] = pack_bf16(sum.x * scale, sum.y * scale);
    to[1] = pack_bf16(sum.z * scale, sum.w * scale);
  }
  // Of the quads of all rows; a division is slow.
  __device__ int row_of(int item) const {
    if constexpr ((Shape::kDim & (Shape::kDim - 1)) == 0) {
      return item >> (__ffs(Shape::kDim / 4) - 1 - shift_);
    } else {
      return item / quads_;
    }
  }
  __device__ static void add(float4& sum, float factor, float4 value) {
    sum.x = fmaf(factor, value.x, sum.x);
    sum.y = fmaf(factor, value.y, sum.y);
    sum.z = fmaf(factor, value.z, sum.z);
    sum.w = fmaf(factor, value.w, sum.w);
  }

  __device__ void fold_members(int item) {
    const int row = row_of(item);
    const int quad = item - row * quads_;
    float most = -INFINITY;
#pragma unroll 4
    for (int m = 0; m < members_; ++m) most = fmaxf(most, block_.inbox_stats(m, row).x);
    const float base = most == -INFINITY ? 0.0f : most;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float weights = 0.0f;
#pragma unroll 4
    for (int m = 0; m < members_; ++m) {
      const float2 stats = block_.inbox_stats(m, row);
      const float factor = exp2_fast(stats.x - base);
      add(sum, factor, *reinterpret_cast<const float4*>(block_.inbox(m, row) + quad * 4));
      weights = fmaf(factor, stats.y, weights);
    }
    leave(row, quad, sum, most, weights);
  }
  // One sum for each `cluster` lanes, a member a lane.
  __device__ void fold_side_by_side() const {
    const int item = static_cast<int>(threadIdx.x) >> shift_;
    const int member = static_cast<int>(threadIdx.x) & (p_.cluster - 1);
    const bool there = item < work_.rows * quads_ && member < members_;
    const int row = there ? row_of(item) : 0;
    const int quad = there ? item - row * quads_ : 0;
    const float2 stats = there ? block_.inbox_stats(member, row) : make_float2(-INFINITY, 0.0f);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (there) sum = *reinterpret_cast<const float4*>(block_.inbox(member, row) + quad * 4);
    float most = stats.x;
    for (int other = 1; other < p_.cluster; other *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, other));
    const float factor = exp2_fast(stats.x - (most == -INFINITY ? 0.0f : most));
    float weights = factor * stats.y;
    sum = make_float4(factor * sum.x, factor * sum.y, factor * sum.z, factor * sum.w);
    for (int other = 1; other < p_.cluster; other *= 2) {
      weights += __shfl_xor_sync(0xffffffffu, weights, other);
      sum.x += __shfl_xor_sync(0xffffffffu, sum.x, other);
      sum.y += __shfl_xor_sync(0xffffffffu, sum.y, other);
      sum.z += __shfl_xor_sync(0xffffffffu, sum.z, other);
      sum.w += __shfl_xor_sync(0xffffffffu, sum.w, other);
    }
    if (there && member == 0) leave(row, quad, sum, most, weights);
  }
  // The output, or this cluster's share of it.
  __device__ void leave(int row, int quad, float4 sum, float most, float weights) const {
    if (clusters_ == 1) {
      write(row, quad, sum, weights);
      return;
    }
    float* to = slice(index_);
    __stcg(reinterpret_cast<float4*>(to + row * columns_ + quad * 4), sum);
    if (quad == 0)
      __stcg(reinterpret_cast<float2*>(to + Shape::kRows * columns_ + row * 2), make_float2(most, weights));
  }

  // Leaves the counter at zero for the next launch.
  __device__ void fold_clusters() {
    bool& last = block_flag();
    __threadfence();
    block_sync<Shape>();
    if (threadIdx.x == 0) {
      const int pair = work_.sequence * static_cast<int>(gridDim.y) + work_.head;
      std::uint32_t* counter = p_.counters + pair * kMaxCluster + rank_;
      last = atomicAdd(counter, 1u) == static_cast<std::uint32_t>(clusters_ - 1);
      if (last) *counter = 0;
    }
    block_sync<Shape>();
    if (!last) return;
    __threadfence();
    for (int i = static_cast<int>(threadIdx.x); i < work_.rows * quads_; i += Shape::kThreads) {
      const int row = row_of(i);
      const int quad = i - row * quads_;
      const auto stats = [&](int c) {
        return __ldcg(reinterpret_cast<const float2*>(slice(c) + Shape::kRows * columns_ + row * 2));
      };
      float most = -INFINITY;
#pragma unroll 16
      for (int c = 0; c < clusters_; ++c) most = fmaxf(most, stats(c).x);
      const float base = most == -INFINITY ? 0.0f : most;
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      float weights = 0.0f;
#pragma unroll 16
      for (int c = 0; c < clusters_; ++c) {
        const float2 of_cluster = stats(c);
        const float factor = exp2_fast(of_cluster.x - base);
        add(sum, factor, __ldcg(reinterpret_cast<const float4*>(slice(c) + row * columns_ + quad * 4)));
        weights = fmaf(factor, of_cluster.y, weights);
      }
      write(row, quad, sum, weights);
    }
  }

  const FlashParams& p_;
  const Work& work_;
  const DecodeBlock<Shape>& block_;
  int shift_, rank_, index_, clusters_, most_clusters_, members_, columns_, quads_;
};

template <typename Shape>
__device__ __forceinline__ void decode(const FlashParams& params) {
  // Parameters are cold in constant memory at every launch; all are fetched at once while the predecessor runs.
  for (unsigned i = threadIdx.x; i < sizeof params / 4; i += Shape::kBlockThreads) {
    fetch(reinterpret_cast<const std::uint32_t*>(&params)[i]);
  }
  cluster_arrive_aligned();
  std::conditional_t<Shape::kFew, DecodeFewBlock<Shape>, DecodeBlock<Shape>> block(params, block_memory);
  __syncthreads();
  if constexpr (Shape::kFew) {
    if (block.fetches()) {
      fewer_registers<kFewFetchRegisters>();
      block.fetch();
      cluster_wait_aligned();
      return;
    }
    more_registers<kFewMultiplyRegisters<Shape>>();
  }
  if (!block.run()) return;
  cluster_wait_aligned();  // all have started: their shared memory may be written
  if (block.work().low < block.work().high) block.publish();
  cluster_arrive_aligned();
  cluster_wait_aligned();
  SliceFold<Shape>(params, block).run();
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) decode_kernel(const __grid_constant__ FlashParams params) {
  decode<Shape>(params);
}

// For blocks with little shared memory: they find a place beside a block of another kernel with 9 warps of up to 96
// registers, three of them in one quarter of the processor, and its successor beside them: (16384 - 3 * 32 * 96) / 32.
constexpr int kRegistersBeside = 224;
template <typename Shape>
__global__ void __maxnreg__(kRegistersBeside) decode_beside_kernel(const __grid_constant__ FlashParams params) {
  decode<Shape>(params);
}

template <typename Shape>
__global__ void __maxnreg__(kFewRegisters<Shape>) decode_few_kernel(const __grid_constant__ FlashParams params) {
  decode<Shape>(params);
}

// Longer rings fill the processor; sizes below 256 take fewer registers anyway.
template <typename Shape>
auto kernel_for(int stages) {
  if constexpr (Shape::kFew) {
    return decode_few_kernel<Shape>;
  } else if constexpr (Shape::kDim < 256) {
    return decode_kernel<Shape>;
  } else if constexpr (Shape::kInt8) {
    return decode_beside_kernel<Shape>;
  } else {
    return stages == 1 ? decode_beside_kernel<Shape> : decode_kernel<Shape>;
  }
}

template <typename Shape>
cudaError_t allow(int stages) {
  const auto kernel = kernel_for<Shape>(stages);
  const cudaError_t error = allow_shared(kernel, std::max(Shape::shared_bytes(Shape::most_stages(true), true),
                                                          Shape::shared_bytes(Shape::most_stages(false), false)));
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

// Blocks of both kernels, with and without preparation, that the device holds at once.
template <typename Shape, typename Preparing>
cudaError_t prepare_shapes(DecodeLimits& limits) {
  limits.stage_keys = Shape::kStageKeys;
  cudaError_t error = cudaSuccess;
  for (int stages = 1; error == cudaSuccess && stages <= kMostStages<Shape>; ++stages) {
    error = allow<Shape>(stages);
    if (error == cudaSuccess) error = allow<Preparing>(stages);
  }
  for (int size = 0; error == cudaSuccess && size < kClusterSizes; ++size) {
    if (Shape::kDim % (4 << size) != 0) continue;  // a slice is of whole 4 columns
    limits.stages[size] = Shape::most_stages(size > 0);
    for (int stages = 1; error == cudaSuccess && stages <= limits.stages[size]; ++stages) {
      cudaLaunchAttribute attribute = cluster_attribute(1 << size);
      cudaLaunchConfig_t config{};
      config.gridDim = dim3(kMaxCluster);
      config.blockDim = dim3(Shape::kBlockThreads);
      config.dynamicSmemBytes = static_cast<std::size_t>(Shape::shared_bytes(stages, size > 0));
      config.attrs = &attribute;
      config.numAttrs = 1;
      int clusters = 0;
      int preparing = 0;
      error = cudaOccupancyMaxActiveClusters(&clusters, kernel_for<Shape>(stages), &config);
      if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveClusters(&preparing, kernel_for<Preparing>(stages), &config);
      limits.blocks_at_once[stages - 1][size] = std::min(clusters, preparing) << size;
    }
  }
  return error;
}

template <typename Shape>
cudaError_t launch_shape(const FlashParams& params, const LaunchShape& shape) {
  LaunchShape by_head = shape;
  by_head.kv_heads <<= params.head_shift;
  return launch_grid(kernel_for<Shape>(params.stages), params, by_head, params.splits, params.cluster,
                     Shape::kBlockThreads, Shape::shared_bytes(params.stages, params.cluster > 1, params.inbox_rows));
}

template <typename Shape, typename Preparing>
cudaError_t launch_shapes(const FlashParams& params, const LaunchShape& shape) {
  return params.preparation.projections != nullptr ? launch_shape<Preparing>(params, shape)
                                                   : launch_shape<Shape>(params, shape);
}

}  // namespace facet::attention::cuda
