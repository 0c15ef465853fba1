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
    pairs_ = columns_ / 2;
    all_ = block.cluster_stats();
  }

  // The cluster's blocks have published.
  __device__ void run() {
    const std::uint32_t own_stats = shared_address(block_.stats());
    for (int i = static_cast<int>(threadIdx.x); i < members_ * Shape::kRows; i += Shape::kThreads) {
      all_[i] = load_remote(remote_address(own_stats + static_cast<std::uint32_t>(i % Shape::kRows) * 8,
                                           static_cast<std::uint32_t>(i / Shape::kRows)));
    }
    __syncthreads();
    if (threadIdx.x < work_.rows) weigh_members(static_cast<int>(threadIdx.x));
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < work_.rows * pairs_; i += Shape::kThreads) fold_members(i);
    if (clusters_ > 1) fold_clusters();
  }

 private:
  // Floats of a slice: sums, then largest score and sum of weights of every row.
  __device__ float* slice(int cluster) const {
    const std::int64_t pair = work_.sequence * static_cast<int>(gridDim.y) + work_.head;
    const std::int64_t at = pair * (p_.splits / cluster_) + cluster;
    return p_.parts + at * kPartFloats<Shape::kDim> + rank_ * (Shape::kRows * (columns_ + 2));
  }
  __device__ void write(int row, int pair, float2 sum) const {
    *reinterpret_cast<std::uint32_t*>(output_row<Shape::kDim>(p_, work_, row) + rank_ * columns_ + pair * 2) =
        pack_bf16(sum.x, sum.y);
  }

  // The members' largest scores become their factors; with one cluster the factors also divide by the sum of weights.
  __device__ void weigh_members(int row) {
    float most = -INFINITY;
    for (int m = 0; m < members_; ++m) most = fmaxf(most, all_[m * Shape::kRows + row].x);
    const float base = most == -INFINITY ? 0.0f : most;
    float weights = 0.0f;
    for (int m = 0; m < members_; ++m) {
      float2& member = all_[m * Shape::kRows + row];
      member.x = exp2_fast(member.x - base);
      weights = fmaf(member.x, member.y, weights);
    }
    if (clusters_ > 1) {
      __stcg(reinterpret_cast<float2*>(slice(index_) + Shape::kRows * columns_ + row * 2), make_float2(most, weights));
      return;
    }
    const float scale = weights > 0.0f ? 1.0f / weights : 0.0f;
    for (int m = 0; m < members_; ++m) all_[m * Shape::kRows + row].x *= scale;
  }

  __device__ void fold_members(int item) {
    const int row = item / pairs_;
    const int pair = item % pairs_;
    const std::uint32_t own = shared_address(block_.sums()) +
                              static_cast<std::uint32_t>(row * Shape::kSumStride + rank_ * columns_ + pair * 2) * 4;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 8
    for (int m = 0; m < members_; ++m) {
      const float2 value = load_remote(remote_address(own, static_cast<std::uint32_t>(m)));
      const float factor = all_[m * Shape::kRows + row].x;
      sum.x = fmaf(factor, value.x, sum.x);
      sum.y = fmaf(factor, value.y, sum.y);
    }
    if (clusters_ == 1) {
      write(row, pair, sum);
    } else {
      __stcg(reinterpret_cast<float2*>(slice(index_) + row * columns_ + pair * 2), sum);
    }
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
    for (int i = static_cast<int>(threadIdx.x); i < work_.rows * pairs_; i += Shape::kThreads) {
      const int row = i / pairs_;
      const int pair = i % pairs_;
      const auto stats = [&](int c) {
        return __ldcg(reinterpret_cast<const float2*>(slice(c) + Shape::kRows * columns_ + row * 2));
      };
      float most = -INFINITY;
#pragma unroll 8
      for (int c = 0; c < clusters_; ++c) most = fmaxf(most, stats(c).x);
      const float base = most == -INFINITY ? 0.0f : most;
      float2 sum = make_float2(0.0f, 0.0f);
      float weights = 0.0f;
#pragma unroll 8
      for (int c = 0; c < clusters_; ++c) {
        const float2 of_cluster = stats(c);
        const float2 value = __ldcg(reinterpret_cast<const float2*>(slice(c) + row * columns_ + pair * 2));
        const float factor = exp2_fast(of_cluster.x - base);
        sum.x = fmaf(factor, value.x, sum.x);
        sum.y = fmaf(factor, value.y, sum.y);
        weights = fmaf(factor, of_cluster.y, weights);
      }
      const float scale = weights > 0.0f ? 1.0f / weights : 0.0f;
      write(row, pair, make_float2(sum.x * scale, sum.y * scale));
    }
  }

  const FlashParams& p_;
  const Work& work_;
  const DecodeBlock<Shape>& block_;
  const int cluster_;
  int rank_, index_, clusters_, members_, columns_, pairs_;
  float2* all_;
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

// How many blocks run at once, for clusters of 1, 2, 4, 8 and 16.
template <typename Shape>
cudaError_t prepare(std::int32_t* blocks_at_once) {
  const int bytes = Shape::shared_bytes(Shape::kMostStages);
  cudaError_t error = allow_shared(decode_kernel<Shape>, bytes);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(decode_kernel<Shape>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  for (int i = 0; error == cudaSuccess && i < kClusterSizes; ++i) {
    cudaLaunchAttribute attribute = cluster_attribute(1 << i);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(kMaxCluster);
    config.blockDim = dim3(Shape::kThreads);
    config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    error = cudaOccupancyMaxActiveClusters(&clusters, decode_kernel<Shape>, &config);
    blocks_at_once[i] = clusters << i;
  }
  return error;
}

template <typename Shape>
cudaError_t launch(FlashParams params, const LaunchShape& shape, std::int64_t seen) {
  // No more stages than a block has tiles: what is left of the shared memory serves the next kernel's first weights.
  const std::int64_t share = (seen + params.splits - 1) / params.splits;
  const std::int64_t tiles = (share + Shape::kKeys * Shape::kTeams - 1) / (Shape::kKeys * Shape::kTeams);
  params.stages = static_cast<std::int32_t>(tiles < Shape::kMostStages ? tiles : Shape::kMostStages);
  return launch_grid(decode_kernel<Shape>, params, shape, params.splits, params.cluster, Shape::kThreads,
                     Shape::shared_bytes(params.stages));
}

}  // namespace

cudaError_t prepare_decode(std::int32_t head_dim, bool int8, std::int32_t* blocks_at_once) {
  return for_head_dim(head_dim, [&]<int kDim>() {
    return int8 ? prepare<DecodeShape<kDim, true>>(blocks_at_once) : prepare<DecodeShape<kDim, false>>(blocks_at_once);
  });
}

cudaError_t launch_decode(const FlashParams& params, const LaunchShape& shape, std::int64_t seen) {
  return for_head_dim(shape.head_dim, [&]<int kDim>() {
    return shape.int8 ? launch<DecodeShape<kDim, true>>(params, shape, seen)
                      : launch<DecodeShape<kDim, false>>(params, shape, seen);
  });
}

}  // namespace facet::attention::cuda
