// Decode: sequences with at most 16 packed rows, their keys split over blocks.
//
// The blocks of a cluster put O, largest scores and sums into their shared memory; each then folds a slice of the
// columns over all of them. With one cluster a (sequence, KV head) that is the output. With more, the last cluster to
// arrive at a slice folds the slices of all in their order, so that no sum depends on who came when.
#include "attention/cuda/decode_block.cuh"
#include "attention/cuda/launch.cuh"

namespace facet::attention::cuda {

namespace {

// Columns [column0, column0 + columns) of every row, folded over the blocks of this cluster that have keys.
template <typename Shape>
class SliceFold {
 public:
  __device__ SliceFold(const FlashParams& params, const Work& work, const DecodeBlock<Shape>& block)
      : p_(params), work_(work), block_(block), cluster_(static_cast<int>(cluster_size())) {
    rank_ = static_cast<int>(blockIdx.x) % cluster_;
    index_ = static_cast<int>(blockIdx.x) / cluster_;
    clusters_ = (work.parts + cluster_ - 1) / cluster_;
    members_ = min(cluster_, work.parts - index_ * cluster_);
    columns_ = Shape::kDim / cluster_;
    quads_ = columns_ / 4;
  }

  // The cluster's blocks have published.
  __device__ void run() {
    for (int i = static_cast<int>(threadIdx.x); i < work_.rows * quads_; i += Shape::kThreads) fold_members(i);
    if (clusters_ > 1) fold_clusters();
  }

 private:
  // Floats of a slice: sums, then largest score and sum of weights of every row.
  __device__ float* slice(int cluster) const {
    const std::int64_t pair = work_.sequence * static_cast<int>(gridDim.y) + work_.head;
    const std::int64_t at = pair * (p_.splits / cluster_) + cluster;
    return p_.parts + at * kPartFloats<Shape::kDim> + rank_ * (Shape::kRows * (columns_ + 2));
  }
  __device__ void write(int row, int quad, float4 sum, float weights) const {
    const float scale = weights > 0.0f ? 1.0f / weights : 0.0f;
    auto* to = reinterpret_cast<std::uint32_t*>(output_row<Shape::kDim>(p_, work_, row) + rank_ * columns_ + quad * 4);
    to[0] = pack_bf16(sum.x * scale, sum.y * scale);
    to[1] = pack_bf16(sum.z * scale, sum.w * scale);
  }
  __device__ static void add(float4& sum, float factor, float4 value) {
    sum.x = fmaf(factor, value.x, sum.x);
    sum.y = fmaf(factor, value.y, sum.y);
    sum.z = fmaf(factor, value.z, sum.z);
    sum.w = fmaf(factor, value.w, sum.w);
  }

  // All reads of remote memory go out together.
  __device__ void fold_members(int item) {
    const int row = item / quads_;
    const int quad = item % quads_;
    const std::uint32_t own_stats = shared_address(block_.stats() + row);
    const std::uint32_t own_sums =
        shared_address(block_.sums()) +
        static_cast<std::uint32_t>(row * Shape::kSumStride + rank_ * columns_ + quad * 4) * 4;
    float2 stats[kMaxCluster];
    float4 values[kMaxCluster];
#pragma unroll
    for (int m = 0; m < kMaxCluster; ++m) {
      if (m >= members_) break;
      stats[m] = load_remote2(remote_address(own_stats, static_cast<std::uint32_t>(m)));
      values[m] = load_remote4(remote_address(own_sums, static_cast<std::uint32_t>(m)));
    }
    float most = -INFINITY;
#pragma unroll
    for (int m = 0; m < kMaxCluster; ++m) {
      if (m < members_) most = fmaxf(most, stats[m].x);
    }
    const float base = most == -INFINITY ? 0.0f : most;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float weights = 0.0f;
#pragma unroll
    for (int m = 0; m < kMaxCluster; ++m) {
      if (m >= members_) break;
      const float factor = exp2_fast(stats[m].x - base);
      add(sum, factor, values[m]);
      weights = fmaf(factor, stats[m].y, weights);
    }
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
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      const int pair = work_.sequence * static_cast<int>(gridDim.y) + work_.head;
      std::uint32_t* counter = p_.counters + pair * kMaxCluster + rank_;
      last = atomicAdd(counter, 1u) == static_cast<std::uint32_t>(clusters_ - 1);
      if (last) *counter = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int i = static_cast<int>(threadIdx.x); i < work_.rows * quads_; i += Shape::kThreads) {
      const int row = i / quads_;
      const int quad = i % quads_;
      const auto stats = [&](int c) {
        return __ldcg(reinterpret_cast<const float2*>(slice(c) + Shape::kRows * columns_ + row * 2));
      };
      float most = -INFINITY;
#pragma unroll 8
      for (int c = 0; c < clusters_; ++c) most = fmaxf(most, stats(c).x);
      const float base = most == -INFINITY ? 0.0f : most;
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      float weights = 0.0f;
#pragma unroll 8
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
  const int cluster_;
  int rank_, index_, clusters_, members_, columns_, quads_;
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) decode_kernel(const __grid_constant__ FlashParams params) {
  extern __shared__ unsigned char shared[];
  wait_for_predecessor();
  let_successor_start();
  Work work;
  if (!find_rows_of_block<true>(params, work, 0, Shape::kRows)) return;  // the whole cluster agrees
  // Shares of whole 16 keys; a cluster without any leaves, a block without any stays for its cluster's barriers.
  const int share = (((work.high - work.low + params.splits - 1) / params.splits) + 15) & ~15;
  work.parts = (work.high - work.low + share - 1) / share;
  const auto part = static_cast<int>(blockIdx.x);
  const auto cluster = static_cast<int>(cluster_size());
  if (part / cluster * cluster >= work.parts) return;
  work.low = min(work.low + part * share, work.high);
  work.high = min(work.high, work.low + share);
  DecodeBlock<Shape> block(params, work, shared);
  if (work.low < work.high) {
    block.run();
    block.publish();
  }
  cluster_barrier();
  SliceFold<Shape>(params, work, block).run();
  cluster_barrier();  // nobody leaves while others read its shared memory
}

template <typename Shape>
cudaError_t prepare(DecodeLimits& limits) {
  limits.stage_keys = Shape::kKeys * Shape::kTeams;
  limits.stages = Shape::kMostStages;
  cudaError_t error = allow_shared(decode_kernel<Shape>, Shape::shared_bytes(Shape::kMostStages));
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(decode_kernel<Shape>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  for (int stages = 1; stages <= Shape::kMostStages; ++stages) {
    for (int size = 0; error == cudaSuccess && size < kClusterSizes; ++size) {
      if (Shape::kDim % (4 << size) != 0) continue;  // a slice is of whole 4 columns
      cudaLaunchAttribute attribute = cluster_attribute(1 << size);
      cudaLaunchConfig_t config{};
      config.gridDim = dim3(kMaxCluster);
      config.blockDim = dim3(Shape::kThreads);
      config.dynamicSmemBytes = static_cast<std::size_t>(Shape::shared_bytes(stages));
      config.attrs = &attribute;
      config.numAttrs = 1;
      int clusters = 0;
      error = cudaOccupancyMaxActiveClusters(&clusters, decode_kernel<Shape>, &config);
      limits.blocks_at_once[stages - 1][size] = clusters << size;
    }
  }
  return error;
}

template <typename Shape>
cudaError_t launch(const FlashParams& params, const LaunchShape& shape) {
  return launch_grid(decode_kernel<Shape>, params, shape, params.splits, params.cluster, Shape::kThreads,
                     Shape::shared_bytes(params.stages));
}

}  // namespace

cudaError_t prepare_decode(std::int32_t head_dim, bool int8, DecodeLimits& limits) {
  return for_head_dim(head_dim, [&]<int kDim>() {
    return int8 ? prepare<DecodeShape<kDim, true>>(limits) : prepare<DecodeShape<kDim, false>>(limits);
  });
}

cudaError_t launch_decode(const FlashParams& params, const LaunchShape& shape) {
  return for_head_dim(shape.head_dim, [&]<int kDim>() {
    return shape.int8 ? launch<DecodeShape<kDim, true>>(params, shape)
                      : launch<DecodeShape<kDim, false>>(params, shape);
  });
}

}  // namespace facet::attention::cuda
