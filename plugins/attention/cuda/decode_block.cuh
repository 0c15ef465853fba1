// Decode: one block walks a share of the keys of one (sequence, KV head) for up to 16 packed queries.
//
// Teams of warps walk tiles of 16 keys of their own, each through a ring of stages that it copies itself: no barrier of
// the block until the end, when the teams' sums are folded in their order. Scores become weights in registers: the
// result of Q K^T has the layout that P V reads.
#pragma once

#include "attention/cuda/work.cuh"

namespace facet::attention::cuda {

template <int kDimT, bool kInt8T>
struct DecodeShape {
  static constexpr int kDim = kDimT;
  static constexpr bool kInt8 = kInt8T;
  static constexpr int kRows = kDecodeRows;
  static constexpr int kKeys = 16;  // of a tile
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  // 256 columns of 16 rows are 128 registers; more columns are shared out.
  static constexpr int kTeamWarps = kDim > 256 ? kDim / 256 : 1;
  static constexpr int kTeams = kWarps / kTeamWarps;
  static constexpr int kColumns = kDim / kTeamWarps;  // of a warp
  static constexpr int kColumnTiles = kColumns / 8;
  static constexpr int kChunks = kDim / 8;

  static constexpr int kQueryBytes = tile_bytes(kDim, kRows);
  static constexpr int kTileBytes = tile_bytes(kDim, kKeys);
  static constexpr int kStageBytes = 2 * kTileBytes * kTeams;  // keys and values of every team
  static constexpr int kScaleBytes = kInt8 ? kTeams * 2 * kKeys * 4 : 0;
  // Sums of the teams, then of the block, over the ring; 8 floats of padding part the banks.
  static constexpr int kSumStride = kDim + 8;
  static constexpr int kSumBytes = kTeams * kRows * kSumStride * 4;
  // Largest scores and sums of weights: teams, then the block, then the blocks of the cluster.
  static constexpr int kStatBytes = (kTeams + 1 + kMaxCluster) * kRows * 8;
  static constexpr int kFit = (208 * 1024 - kQueryBytes) / kStageBytes;
  static constexpr int kMostStages = kInt8 ? 1 : kFit < kMaxStages ? kFit : kMaxStages;
  static constexpr int ring_bytes(int stages) {
    return stages * kStageBytes > kSumBytes ? stages * kStageBytes : kSumBytes;
  }
  static constexpr int shared_bytes(int stages) {
    return 1024 + kQueryBytes + ring_bytes(stages) + stages * kScaleBytes + kStatBytes;
  }
};

template <typename Shape>
class DecodeBlock {
 public:
  __device__ DecodeBlock(const FlashParams& params, const Work& work, unsigned char* shared)
      : p_(params), work_(work), stages_(params.stages) {
    const auto address = (shared_address(shared) + 1023u) & ~1023u;
    unsigned char* base = shared + (address - shared_address(shared));
    queries_ = address;
    warp_ = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
    team_ = warp_ / Shape::kTeamWarps;
    member_ = warp_ % Shape::kTeamWarps;
    ring_ = queries_ + Shape::kQueryBytes + static_cast<std::uint32_t>(team_ * stages_ * 2 * Shape::kTileBytes);
    sums_ = reinterpret_cast<float*>(base + Shape::kQueryBytes);
    base += Shape::kQueryBytes + ring_bytes();
    scales_ = reinterpret_cast<float*>(base) + team_ * stages_ * 2 * Shape::kKeys;
    stats_ = reinterpret_cast<float2*>(base + stages_ * Shape::kScaleBytes);
    for (int half = 0; half < 2; ++half) {
      const int row = lane_ / 4 + half * 8;
      query_position_[half] = row < work.rows ? work.first_position + row / params.group : -1;
    }
  }

  __device__ void run() {
    const int tiles = (work_.high - work_.low + Shape::kKeys - 1) / Shape::kKeys;
    int next = team_;
    load_queries();  // of the group of the first tile
    for (int stage = 0; stage < stages_; ++stage, next += Shape::kTeams) {
      if (next < tiles) load(next, stage);
      commit_copies();
    }
    wait_for_tile();
    __syncthreads();  // the queries are there
    int stage = 0;
    for (int tile = team_; tile < tiles; tile += Shape::kTeams, next += Shape::kTeams) {
      wait_for_tile();
      team_barrier();  // the tile is there
      step(tile, stage);
      team_barrier();  // the stage is done with
      if (next < tiles) load(next, stage);
      commit_copies();
      if (++stage == stages_) stage = 0;
    }
  }

  // The sums of the block into shared memory, folded over its teams. The values are those of all keys of the block.
  __device__ void publish() {
    wait_copies<0>();
    __syncthreads();  // the ring is done with
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const int row = lane_ / 4 + half * 8;
      if (row >= work_.rows) continue;
      if (member_ == 0 && (lane_ & 3) == 0) stats_[team_ * Shape::kRows + row] = make_float2(largest_[half], sum);
      float* to = team_sums(team_) + row * Shape::kSumStride + member_ * Shape::kColumns + (lane_ & 3) * 2;
#pragma unroll
      for (int c = 0; c < Shape::kColumnTiles; ++c) {
        *reinterpret_cast<float2*>(to + c * 8) = make_float2(out_[c][half * 2], out_[c][half * 2 + 1]);
      }
    }
    __syncthreads();
    if (threadIdx.x < Shape::kRows) weigh_teams(static_cast<int>(threadIdx.x));
    __syncthreads();
    constexpr int kQuads = Shape::kDim / 4;
    for (int i = static_cast<int>(threadIdx.x); i < work_.rows * kQuads; i += Shape::kThreads) {
      const int row = i / kQuads;
      const int at = row * Shape::kSumStride + i % kQuads * 4;
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
      for (int t = 0; t < Shape::kTeams; ++t) {
        const float4 value = *reinterpret_cast<const float4*>(team_sums(t) + at);
        const float factor = stats_[t * Shape::kRows + row].x;
        sum.x = fmaf(factor, value.x, sum.x);
        sum.y = fmaf(factor, value.y, sum.y);
        sum.z = fmaf(factor, value.z, sum.z);
        sum.w = fmaf(factor, value.w, sum.w);
      }
      *reinterpret_cast<float4*>(sums_ + at) = sum;  // over team 0, by the thread that read it
    }
  }

  // [kRows, kSumStride], and one pair a row: largest score, sum of weights.
  __device__ const float* sums() const {
    return sums_;
  }
  __device__ float2* stats() const {
    return stats_ + Shape::kTeams * Shape::kRows;
  }
  __device__ float2* cluster_stats() const {
    return stats() + Shape::kRows;
  }

 private:
  // The teams' largest scores become their factors.
  __device__ void weigh_teams(int row) {
    float most = -INFINITY;
    for (int t = 0; t < Shape::kTeams; ++t) most = fmaxf(most, stats_[t * Shape::kRows + row].x);
    const float base = most == -INFINITY ? 0.0f : most;
    float weights = 0.0f;
    for (int t = 0; t < Shape::kTeams; ++t) {
      float2& of_team = stats_[t * Shape::kRows + row];
      of_team.x = exp2_fast(of_team.x - base);
      weights = fmaf(of_team.x, of_team.y, weights);
    }
    stats()[row] = make_float2(most, weights);
  }

  __device__ int ring_bytes() const {
    const int bytes = stages_ * Shape::kStageBytes;
    return bytes > Shape::kSumBytes ? bytes : Shape::kSumBytes;
  }
  __device__ float* team_sums(int team) const {
    return sums_ + team * Shape::kRows * Shape::kSumStride;
  }
  __device__ std::uint32_t keys(int stage) const {
    return ring_ + static_cast<std::uint32_t>(stage * 2 * Shape::kTileBytes);
  }
  __device__ void team_barrier() const {
    if constexpr (Shape::kTeamWarps == 1) {
      __syncwarp();
    } else {
      named_barrier(1 + team_, Shape::kTeamWarps * 32);
    }
  }
  __device__ void wait_for_tile() const {
    if (stages_ == 1) {
      wait_copies<0>();
    } else if (stages_ == 2) {
      wait_copies<1>();
    } else if (stages_ == 3) {
      wait_copies<2>();
    } else {
      wait_copies<3>();
    }
  }

  __device__ void load_queries() const {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * Shape::kChunks; i += Shape::kThreads) {
      const int row = i / Shape::kChunks;
      const int chunk = i % Shape::kChunks;
      const bool valid = row < work_.rows;
      const std::int64_t token = work_.token_begin + (valid ? row / p_.group : 0);
      const int head = work_.head * p_.group + (valid ? row % p_.group : 0);
      copy16_async(
          chunk_address<Shape::kRows>(queries_, row, chunk),
          static_cast<const __nv_bfloat16*>(p_.queries) + token * p_.query_stride + head * Shape::kDim + chunk * 8,
          valid);
    }
  }

  // A warp copies its share of the rows of a tile; lane r knows where row r lies.
  __device__ void load(int tile, int stage) const {
    const int first = work_.low + tile * Shape::kKeys;
    const RowPlace own = find_row(p_.kv, work_.sequence, work_.head, work_.only_block, first + lane_ % Shape::kKeys,
                                  work_.low, work_.high);
    if constexpr (Shape::kInt8) {
      float* scales = scales_ + stage * 2 * Shape::kKeys;
      const bool valid = own.offset >= 0;
      if (lane_ < Shape::kKeys) {
        scales[lane_] = valid ? p_.kv.key_scales[own.scale] : 0.0f;
        scales[Shape::kKeys + lane_] = valid ? p_.kv.value_scales[own.scale] : 0.0f;
      }
    }
    constexpr int kCopies = Shape::kKeys * Shape::kChunks / (32 * Shape::kTeamWarps);
    const std::uint32_t to = keys(stage);
#pragma unroll 8
    for (int i = 0; i < kCopies; ++i) {
      const int index = (member_ * kCopies + i) * 32 + lane_;
      const int row = index / Shape::kChunks;
      const int chunk = index % Shape::kChunks;
      const std::int64_t offset = __shfl_sync(0xffffffffu, own.offset, row);
      const std::uint32_t at = chunk_address<Shape::kKeys>(to, row, chunk);
      copy_chunk<Shape::kInt8>(at, p_.kv.keys, offset, chunk);
      copy_chunk<Shape::kInt8>(at + Shape::kTileBytes, p_.kv.values, offset, chunk);
    }
  }

  __device__ void step(int tile, int stage) {
    float score[2][4];
    multiply_keys(keys(stage), score);
    const float* scales = scales_ + stage * 2 * Shape::kKeys;
    mask(work_.low + tile * Shape::kKeys, scales, score);
    std::uint32_t weights[4];
    weigh(scales + Shape::kKeys, score, weights);
    const std::uint32_t values = keys(stage) + Shape::kTileBytes;
    const int chunk0 = member_ * (Shape::kColumns / 8) + lane_ / 16;
#pragma unroll
    for (int c = 0; c < Shape::kColumnTiles; c += 2) {
      std::uint32_t b[4];
      load_matrices_transposed(b, chunk_address<Shape::kKeys>(values, lane_ % 16, chunk0 + c));
      multiply_add(out_[c], weights, b[0], b[1]);
      multiply_add(out_[c + 1], weights, b[2], b[3]);
    }
  }

  // S = Q K^T, two chains of sums for each 8 keys: an mma waits for the one before it in its chain.
  __device__ void multiply_keys(std::uint32_t keys, float (&score)[2][4]) const {
    float sums[2][2][4] = {};
#pragma unroll 4
    for (int k = 0; k < Shape::kDim / 32; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        std::uint32_t a[4], b[4];
        load_matrices(a, chunk_address<Shape::kRows>(queries_, lane_ % 16, k * 4 + i * 2 + lane_ / 16));
        load_matrices(b, chunk_address<Shape::kKeys>(keys, lane_ / 16 * 8 + lane_ % 8, k * 4 + i * 2 + lane_ / 8 % 2));
        multiply_add(sums[i][0], a, b[0], b[1]);
        multiply_add(sums[i][1], a, b[2], b[3]);
      }
    }
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) score[n][i] = sums[0][n][i] + sums[1][n][i];
    }
  }

  __device__ void mask(int first, const float* key_scales, float (&score)[2][4]) const {
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int in_tile = n * 8 + (lane_ & 3) * 2 + i % 2;
        const int key = first + in_tile;
        const int query = query_position_[i / 2];
        // Keys before `low` belong to other blocks or lie outside the window; the tiles begin there.
        const bool seen = key <= query && key < work_.high && (p_.window == 0 || query - key < p_.window);
        const float scale = Shape::kInt8 ? p_.scale * key_scales[in_tile] : p_.scale;
        score[n][i] = seen ? score[n][i] * scale : -INFINITY;
      }
    }
  }

  // Weights exp2(S - largest) as the left operand of P V; sums and O are brought to the new largest score.
  __device__ void weigh(const float* value_scales, float (&score)[2][4], std::uint32_t (&weights)[4]) {
    float factor[2];
    bool moved = false;
    for (int half = 0; half < 2; ++half) {
      const int at = half * 2;
      float most = fmaxf(fmaxf(score[0][at], score[0][at + 1]), fmaxf(score[1][at], score[1][at + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      most = fmaxf(most, largest_[half]);
      moved = moved || most > largest_[half];
      // A row that has seen no key yet keeps -inf; its weights are exp2(-inf - 0).
      const float base = most == -INFINITY ? 0.0f : most;
      factor[half] = exp2_fast(largest_[half] - base);
      largest_[half] = most;
      float sum = 0.0f;
      for (int n = 0; n < 2; ++n) {
        float w0 = exp2_fast(score[n][at] - base);
        float w1 = exp2_fast(score[n][at + 1] - base);
        sum += w0 + w1;
        if constexpr (Shape::kInt8) {
          w0 *= value_scales[n * 8 + (lane_ & 3) * 2];
          w1 *= value_scales[n * 8 + (lane_ & 3) * 2 + 1];
        }
        weights[n * 2 + half] = pack_bf16(w0, w1);
      }
      sum_[half] = fmaf(sum_[half], factor[half], sum);
    }
    if (!__any_sync(0xffffffffu, moved)) return;
#pragma unroll
    for (int c = 0; c < Shape::kColumnTiles; ++c) {
      for (int i = 0; i < 4; ++i) out_[c][i] *= factor[i / 2];
    }
  }

  const FlashParams& p_;
  const Work work_;
  const int stages_;
  std::uint32_t queries_, ring_;
  float* sums_;
  float* scales_;
  float2* stats_;
  int warp_, lane_, team_, member_;
  int query_position_[2];
  float out_[Shape::kColumnTiles][4] = {};
  float largest_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0.0f, 0.0f};
};

}  // namespace facet::attention::cuda
