// One token for each row of logits: temperature, top-k, top-p, min-p and the draw, as facet/sampling/sampler.h has
// them.
//
// A cluster of blocks keeps a row in its shared memory. Masses are whole numbers (2^40 for the most probable token), so
// sums are the same in any order. The tokens that a filter keeps are those above a logit and the first few, by id, that
// equal it; the logit is found by a search over the bits of the ordered key, three at a time.
#include <cooperative_groups.h>

#include "candidate.cuh"
#include "device_math.cuh"
#include "launch.h"

namespace facet::cuda {
namespace {

namespace cg = cooperative_groups;
using Mass = unsigned long long;

constexpr int kBlocks = 16;  // of a cluster
constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBits = 3;  // of the key, a round of the search
constexpr int kWays = (1 << kBits) - 1;
constexpr float kUnit = 0x1p40f;
constexpr int kMaxShared = 200 << 10;

__device__ Mass warp_sum(Mass value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// Tokens kept: key above `key`, or equal to it and among the first `ties` of those.
struct Cut {
  std::uint32_t key;
  Mass ties;
};

class Row {
 public:
  __device__ Row(float* logits, Mass* scratch, const float* source, std::int64_t vocabulary, float cap,
                 float temperature)
      : logits_(logits), scratch_(scratch), temperature_(fmaxf(temperature, 1e-37f)) {
    const std::int64_t part = (vocabulary + kBlocks - 1) / kBlocks;
    first_ = static_cast<std::int64_t>(cluster_.block_rank()) * part;
    count_ = static_cast<int>(max(std::int64_t{0}, min(part, vocabulary - first_)));
    for (int i = static_cast<int>(threadIdx.x); i < count_; i += kThreads)
      logits_[i] = soft_capped(source[first_ + i], cap);
  }

  // The most probable token, the lowest id among equals; kBad and 0 as in candidate.cuh.
  __device__ Candidate best() {
    Candidate mine = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count_; i += kThreads)
      mine = max(mine, candidate(logits_[i], static_cast<std::uint32_t>(first_ + i)));
    for (int offset = 16; offset > 0; offset /= 2) mine = max(mine, __shfl_xor_sync(0xffffffffu, mine, offset));
    if (threadIdx.x % 32 == 0) scratch_[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int warp = 0; warp < kWarps; ++warp) mine = max(mine, scratch_[warp]);
    __syncthreads();
    if (threadIdx.x == 0) scratch_[0] = mine;
    cluster_.sync();
    for (int block = 0; block < kBlocks; ++block) mine = max(mine, cluster_.map_shared_rank(scratch_, block)[0]);
    cluster_.sync();
    return mine;
  }
  __device__ void set_top(float top) { top_ = top; }
  __device__ float weight(float logit) const {
    return logit == -INFINITY ? 0.0f : expf(fmaxf((logit - top_) / temperature_, -88.0f));
  }
  __device__ Mass mass(float logit) const { return __float2ull_rn(weight(logit) * kUnit); }

  // Sums of `value` over the tokens of all blocks with keys of at least bounds[way]; the same in every thread.
  template <typename Value>
  __device__ __noinline__ void sums_from(const std::uint32_t (&bounds)[kWays], Value value, Mass (&sums)[kWays]) {
#pragma unroll
    for (Mass& sum : sums) sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count_; i += kThreads) {
      const std::uint32_t key = key_of(logits_[i]);
      if (key < bounds[0]) continue;
      const Mass one = value(logits_[i]);
#pragma unroll
      for (int way = 0; way < kWays; ++way) sums[way] += key >= bounds[way] ? one : 0;
    }
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int way = 0; way < kWays; ++way) {
      const Mass sum = warp_sum(sums[way]);
      if (lane == 0) scratch_[warp * kWays + way] = sum;
    }
    __syncthreads();
    Mass* const blocks = scratch_ + kWarps * kWays;
    for (int way = warp; way < kWays; way += kWarps) {
      const Mass sum = warp_sum(lane < kWarps ? scratch_[lane * kWays + way] : 0);
      if (lane == 0) blocks[way] = sum;
    }
    cluster_.sync();
#pragma unroll
    for (int way = 0; way < kWays; ++way) {
      sums[way] = 0;
      for (int block = 0; block < kBlocks; ++block) sums[way] += cluster_.map_shared_rank(blocks, block)[way];
    }
    cluster_.sync();
  }

  template <typename Value>
  __device__ __noinline__ Mass sum_from(std::uint32_t key, Value value) {
    std::uint32_t bounds[kWays];
    for (std::uint32_t& bound : bounds) bound = key;
    Mass sums[kWays];
    sums_from(bounds, value, sums);
    return sums[0];
  }

  // The highest key at which the sum of the tokens from it on reaches `wanted`, which the sum of all does.
  template <typename Value>
  __device__ __noinline__ std::uint32_t reach(Mass wanted, Value value) {
    std::uint32_t key = 0;
    for (int shift = 32 - (32 % kBits == 0 ? kBits : 32 % kBits); shift >= 0; shift -= kBits) {
      std::uint32_t bounds[kWays];
#pragma unroll
      for (int way = 0; way < kWays; ++way) {
        const unsigned long long bound = key + (static_cast<unsigned long long>(way + 1) << shift);
        bounds[way] = bound > 0xffffffffull ? 0xffffffffu : static_cast<std::uint32_t>(bound);
      }
      Mass sums[kWays];
      sums_from(bounds, value, sums);
      std::uint32_t next = key;
#pragma unroll
      for (int way = 0; way < kWays; ++way) next = sums[way] >= wanted ? bounds[way] : next;
      key = next;
    }
    return key;
  }

  // Drops what the cut does not keep, and tokens of a weight below `least`.
  __device__ void keep(const Cut& cut, float least) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    Mass equal = 0;  // in the ids before
    if (cut.ties != ~0ull) {
      Mass mine = 0;
      for (int i = static_cast<int>(threadIdx.x); i < count_; i += kThreads) mine += key_of(logits_[i]) == cut.key;
      equal = before(mine);
    }
    for (int row = 0; row < count_; row += kThreads) {
      const int i = row + static_cast<int>(threadIdx.x);
      const float logit = i < count_ ? logits_[i] : -INFINITY;
      const std::uint32_t key = key_of(logit);
      bool kept = key >= cut.key && weight(logit) >= least;
      if (cut.ties != ~0ull) {
        const unsigned ballot = __ballot_sync(0xffffffffu, i < count_ && key == cut.key);
        if (lane == 0) scratch_[warp] = static_cast<Mass>(__popc(ballot));
        __syncthreads();
        Mass rank = equal;
        for (int other = 0; other < warp; ++other) rank += scratch_[other];
        rank += static_cast<Mass>(__popc(ballot & ((1u << lane) - 1)));
        if (key == cut.key && rank >= cut.ties) kept = false;
        for (int other = 0; other < kWarps; ++other) equal += scratch_[other];
        __syncthreads();
      }
      if (i < count_ && !kept) logits_[i] = -INFINITY;
    }
    __syncthreads();
  }

  // The first token, by id, at which the mass of the tokens so far passes `uniform` of the whole.
  __device__ void draw(double uniform, std::int32_t* id) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    Mass mine = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count_; i += kThreads) mine += mass(logits_[i]);
    Mass total = 0;
    Mass passed = before(mine, &total);
    const auto target = min(static_cast<Mass>(uniform * static_cast<double>(total)), total - 1);
    for (int row = 0; row < count_; row += kThreads) {
      const int i = row + static_cast<int>(threadIdx.x);
      const Mass one = i < count_ ? mass(logits_[i]) : 0;
      Mass until = one;  // of the warp
      for (int offset = 1; offset < 32; offset *= 2) {
        const Mass other = __shfl_up_sync(0xffffffffu, until, offset);
        until += lane >= offset ? other : 0;
      }
      if (lane == 31) scratch_[warp] = until;
      __syncthreads();
      for (int other = 0; other < warp; ++other) until += scratch_[other];
      until += passed;
      if (target < until && target >= until - one) *id = static_cast<std::int32_t>(first_ + i);
      for (int other = 0; other < kWarps; ++other) passed += scratch_[other];
      __syncthreads();
    }
  }

 private:
  // Sum of `mine` over all threads of the blocks before this one, and over all blocks.
  __device__ Mass before(Mass mine, Mass* total = nullptr) {
    mine = warp_sum(mine);
    if (threadIdx.x % 32 == 0) scratch_[threadIdx.x / 32] = mine;
    __syncthreads();
    Mass* const block_sum = scratch_ + kWarps;
    if (threadIdx.x == 0) {
      *block_sum = 0;
      for (int warp = 0; warp < kWarps; ++warp) *block_sum += scratch_[warp];
    }
    cluster_.sync();
    Mass sum = 0, all = 0;
    for (unsigned block = 0; block < kBlocks; ++block) {
      const Mass of_block = *cluster_.map_shared_rank(block_sum, block);
      sum += block < cluster_.block_rank() ? of_block : 0;
      all += of_block;
    }
    cluster_.sync();
    if (total != nullptr) *total = all;
    return sum;
  }

  cg::cluster_group cluster_ = cg::this_cluster();
  float* logits_;
  Mass* scratch_;
  float temperature_;
  float top_ = 0;
  std::int64_t first_ = 0;
  int count_ = 0;
};

// How many equal tokens of one mass reach `missing`.
__device__ Mass ties_for(Mass missing, Mass one) {
  return one == 0 ? 1 : (missing + one - 1) / one;
}

__device__ Cut filter(Row& row, const RowSampling& how, std::int64_t vocabulary) {
  const auto one = [](float) -> Mass { return 1; };
  const auto mass = [&row](float logit) { return row.mass(logit); };
  Cut cut{key_of(-INFINITY) + 1, ~0ull};
  // Impossible tokens do not count.
  const Mass possible = how.top_k > 0 && how.top_k < vocabulary ? row.sum_from(cut.key, one) : 0;
  if (possible > static_cast<Mass>(how.top_k)) {
    cut.key = row.reach(static_cast<Mass>(how.top_k), one);
    cut.ties = static_cast<Mass>(how.top_k) - row.sum_from(cut.key + 1, one);
  }
  if (how.top_p < 1) {
    const Mass above = cut.key == 0xffffffffu ? 0 : row.sum_from(cut.key + 1, mass);
    // All tokens at the key have one logit, so one mass.
    const Mass equal = row.sum_from(cut.key, mass) - above;
    const Mass count = cut.ties == ~0ull ? 1 : row.sum_from(cut.key, one) - row.sum_from(cut.key + 1, one);
    const Mass total = cut.ties == ~0ull ? above + equal : above + equal / count * cut.ties;
    const auto wanted = max(static_cast<Mass>(how.top_p * static_cast<double>(total)), Mass{1});
    if (above >= wanted) {
      cut.key = row.reach(wanted, mass);
      cut.ties = ~0ull;
      const Mass over = row.sum_from(cut.key + 1, mass);
      const Mass same = row.sum_from(cut.key, one) - row.sum_from(cut.key + 1, one);
      cut.ties = ties_for(wanted - over, (row.sum_from(cut.key, mass) - over) / same);
    } else if (cut.ties != ~0ull) {
      cut.ties = min(cut.ties, ties_for(wanted - above, equal / count));
    }
  }
  return cut;
}

__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* logits, std::int64_t vocabulary, float cap, const RowSampling* rows, std::int32_t* ids) {
  extern __shared__ float kept[];
  __shared__ Mass scratch[kWarps * kWays + kWays];
  let_successor_begin();
  wait_for_predecessor();
  const std::int64_t index = blockIdx.x / kBlocks;
  const RowSampling how = rows[index];
  Row row(kept, scratch, logits + index * vocabulary, vocabulary, cap, static_cast<float>(how.temperature));
  __syncthreads();
  const Candidate best = row.best();
  std::int32_t* const id = ids + index;
  const std::int32_t greedy = best == kBad || best == 0 ? -1 : id_of(best);
  if (greedy < 0 || how.temperature == 0) {
    if (threadIdx.x == 0 && blockIdx.x % kBlocks == 0) *id = greedy;
    return;
  }
  row.set_top(soft_capped(logits[index * vocabulary + greedy], cap));
  row.keep(filter(row, how, vocabulary), static_cast<float>(how.min_p));
  row.draw(how.uniform, id);
}

}  // namespace

cudaError_t launch_sample(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap,
                          const RowSampling* how, std::int32_t* ids, cudaStream_t stream) {
  const std::int64_t shared = (vocabulary + kBlocks - 1) / kBlocks * static_cast<std::int64_t>(sizeof(float));
  if (shared > kMaxShared) return cudaErrorInvalidValue;
  cudaError_t error = cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxShared);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  return launch_clusters(sample_kernel, kBlocks, dim3(static_cast<unsigned>(rows * kBlocks)), dim3(kThreads),
                         static_cast<std::size_t>(shared), stream, logits, vocabulary, cap, how, ids);
}

}  // namespace facet::cuda
