// Decode: one block walks a share of the keys of one (sequence, KV head) for up to 16 packed queries.
//
// Teams of warps walk tiles of 16 keys of their own, each through a ring of stages that it fills itself, a row a copy:
// no barrier of the block until the end, when the teams' sums are folded in their order. Scores become weights in
// registers: the result of Q K^T has the layout that P V reads.
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

  // 16 bytes between rows part the banks of the 8 rows that ldmatrix reads.
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kPitch = kRowBytes + 16;
  static constexpr int kTileBytes = kKeys * kPitch;
  static constexpr int kStageBytes = 2 * kTileBytes * kTeams;  // keys and values of every team
  static constexpr int kScaleBytes = kInt8 ? kTeams * 2 * kKeys * 4 : 0;
  // Sums of the teams, then of the block, over the ring; 8 floats of padding part the banks.
  static constexpr int kSumStride = kDim + 8;
  static constexpr int kSumBytes = kTeams * kRows * kSumStride * 4;
  // Largest scores and sums of weights: teams, then the block, then the blocks of the cluster.
  static constexpr int kStatBytes = (kTeams + 1 + kMaxCluster) * kRows * 8;
  static constexpr int kBarrierBytes = (1 + kTeams * kMaxStages) * 8;
  static constexpr int kFit = (212 * 1024 - kTileBytes) / kStageBytes;
  static constexpr int kMostStages = kInt8 ? 1 : kFit < kMaxStages ? kFit : kMaxStages;
  static constexpr int ring_bytes(int stages) {
    return stages * kStageBytes > kSumBytes ? stages * kStageBytes : kSumBytes;
  }
  static constexpr int shared_bytes(int stages) {
    return kTileBytes + ring_bytes(stages) + stages * kScaleBytes + kStatBytes + kBarrierBytes;
  }
};

template <typename Shape>
class DecodeBlock {
 public:
  __device__ DecodeBlock(const FlashParams& params, const Work& work, unsigned char* shared)
      : p_(params), work_(work), stages_(params.stages) {
    warp_ = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
    team_ = warp_ / Shape::kTeamWarps;
    member_ = warp_ % Shape::kTeamWarps;
    queries_ = shared_address(shared);
    ring_ = queries_ + Shape::kTileBytes + static_cast<std::uint32_t>(team_ * stages_ * 2 * Shape::kTileBytes);
    unsigned char* at = shared + Shape::kTileBytes;
    sums_ = reinterpret_cast<float*>(at);
    at += ring_bytes();
    scales_ = reinterpret_cast<float*>(at) + team_ * stages_ * 2 * Shape::kKeys;
    at += stages_ * Shape::kScaleBytes;
    stats_ = reinterpret_cast<float2*>(at);
    queries_ready_ = shared_address(at + Shape::kStatBytes);
    tiles_ready_ = queries_ready_ + 8 + static_cast<std::uint32_t>(team_ * kMaxStages * 8);
    if (lane_ == 0 && member_ == 0) {
      for (int stage = 0; stage < stages_; ++stage) barrier_init(tiles_ready_ + stage * 8, Shape::kTeamWarps);
      if (warp_ == 0) barrier_init(queries_ready_, 1);
      barrier_init_fence();
    }
    for (int half = 0; half < 2; ++half) {
      const int row = lane_ / 4 + half * 8;
      query_position_[half] = row < work.rows ? work.first_position + row / params.group : -1;
    }
  }

  __device__ void run() {
    const int tiles = (work_.high - work_.low + Shape::kKeys - 1) / Shape::kKeys;
    team_barrier();  // the team's barriers are there
    int next = team_;
    for (int stage = 0; stage < stages_ && next < tiles; ++stage, next += Shape::kTeams) load(next, stage);
    __syncthreads();  // the queries' barrier as well
    if (warp_ == 0) load_queries();
    barrier_wait(queries_ready_, 0);
    int stage = 0;
    std::uint32_t parity = 0;
    for (int tile = team_; tile < tiles; tile += Shape::kTeams, next += Shape::kTeams) {
      if constexpr (!Shape::kInt8) barrier_wait(tiles_ready_ + static_cast<std::uint32_t>(stage * 8), parity);
      if (Shape::kInt8 || tile + 1 == tiles) team_barrier();  // rows that were written by stores
      step(tile, stage);
      if (next < tiles) {
        team_barrier();  // the stage is done with
        load(next, stage);
      }
      if (++stage == stages_) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  // The sums of the block into shared memory, folded over its teams. The values are those of all keys of the block.
  __device__ void publish() {
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
#pragma unroll 4
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
  __device__ static std::uint32_t address(std::uint32_t tile, int row, int chunk) {
    return tile + static_cast<std::uint32_t>(row * Shape::kPitch + chunk * 16);
  }
  __device__ void team_barrier() const {
    if constexpr (Shape::kTeamWarps == 1) {
      __syncwarp();
    } else {
      named_barrier(1 + team_, Shape::kTeamWarps * 32);
    }
  }
  // Rows past the last query keep what memory held: a row of scores is its own, and these are masked and not written.
  __device__ void load_queries() const {
    if (lane_ == 0) barrier_arrive_expecting(queries_ready_, work_.rows * Shape::kRowBytes);
    __syncwarp();
    if (lane_ >= work_.rows) return;
    const std::int64_t token = work_.token_begin + lane_ / p_.group;
    const int head = work_.head * p_.group + lane_ % p_.group;
    copy_row_async(queries_ + static_cast<std::uint32_t>(lane_ * Shape::kPitch),
                   static_cast<const __nv_bfloat16*>(p_.queries) + token * p_.query_stride + head * Shape::kDim,
                   Shape::kRowBytes, queries_ready_);
  }

  // A warp fills its share of the rows of a tile; lane r knows where row r lies.
  __device__ void load(int tile, int stage) const {
    constexpr int kWarpRows = Shape::kKeys / Shape::kTeamWarps;
    const int row = member_ * kWarpRows + lane_ % kWarpRows;
    const int position = work_.low + tile * Shape::kKeys + row;
    const RowPlace place =
        find_row(p_.kv, work_.sequence, work_.head, work_.only_block, position, work_.low, work_.high);
    const std::uint32_t to = keys(stage);
    if constexpr (Shape::kInt8) {
      float* scales = scales_ + stage * 2 * Shape::kKeys;
      if (lane_ < kWarpRows) {
        scales[row] = place.offset >= 0 ? p_.kv.key_scales[place.scale] : 0.0f;
        scales[Shape::kKeys + row] = place.offset >= 0 ? p_.kv.value_scales[place.scale] : 0.0f;
      }
      widen_rows(to, place.offset);
    } else {
      const std::uint32_t barrier = tiles_ready_ + static_cast<std::uint32_t>(stage * 8);
      const int valid = min(max(work_.high - (position - lane_ % kWarpRows), 0), kWarpRows);
      if (lane_ == 0) barrier_arrive_expecting(barrier, valid * 2 * Shape::kRowBytes);
      __syncwarp();
      if (lane_ < valid) {
        const std::uint32_t at = to + static_cast<std::uint32_t>(row * Shape::kPitch);
        copy_row_async(at, static_cast<const __nv_bfloat16*>(p_.kv.keys) + place.offset, Shape::kRowBytes, barrier);
        copy_row_async(at + Shape::kTileBytes, static_cast<const __nv_bfloat16*>(p_.kv.values) + place.offset,
                       Shape::kRowBytes, barrier);
      }
      // A weight of zero times what memory held may be NaN.
      for (int i = valid * Shape::kChunks + lane_; i < kWarpRows * Shape::kChunks; i += 32) {
        store16(address(to + Shape::kTileBytes, member_ * kWarpRows + i / Shape::kChunks, i % Shape::kChunks),
                make_uint4(0, 0, 0, 0));
      }
    }
  }
  __device__ void widen_rows(std::uint32_t to, std::int64_t own_offset) const {
    constexpr int kWarpRows = Shape::kKeys / Shape::kTeamWarps;
#pragma unroll 8
    for (int i = lane_; i < kWarpRows * Shape::kChunks; i += 32) {
      const int row = i / Shape::kChunks;
      const int chunk = i % Shape::kChunks;
      const std::int64_t offset = __shfl_sync(0xffffffffu, own_offset, row);
      const std::uint32_t at = address(to, member_ * kWarpRows + row, chunk);
      copy_chunk<true>(at, p_.kv.keys, offset, chunk);
      copy_chunk<true>(at + Shape::kTileBytes, p_.kv.values, offset, chunk);
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
    // Fragments are read one batch ahead: instructions issue in order, and a product waits for its operands.
    constexpr int kBatch = 2;  // of 16 columns
    const std::uint32_t from = address(values, lane_ % 16, member_ * (Shape::kColumns / 8) + lane_ / 16);
    std::uint32_t b[2][kBatch][4];
    const auto read = [&](int batch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        load_matrices_transposed(b[batch % 2][i], from + static_cast<std::uint32_t>((batch * kBatch + i) * 32));
      }
    };
    read(0);
#pragma unroll
    for (int batch = 0; batch < Shape::kColumnTiles / 2 / kBatch; ++batch) {
      if (batch + 1 < Shape::kColumnTiles / 2 / kBatch) read(batch + 1);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int c = (batch * kBatch + i) * 2;
        multiply_add(out_[c], weights, b[batch % 2][i][0], b[batch % 2][i][1]);
        multiply_add(out_[c + 1], weights, b[batch % 2][i][2], b[batch % 2][i][3]);
      }
    }
  }

  // S = Q K^T, two chains of sums for each 8 keys: an mma waits for the one before it in its chain.
  __device__ void multiply_keys(std::uint32_t keys, float (&score)[2][4]) const {
    constexpr int kBatch = 2;  // of 16 deep
    constexpr int kBatches = Shape::kDim / 16 / kBatch;
    float sums[2][2][4] = {};
    const std::uint32_t from_a = address(queries_, lane_ % 16, lane_ / 16);
    const std::uint32_t from_b = address(keys, lane_ / 16 * 8 + lane_ % 8, lane_ / 8 % 2);
    std::uint32_t a[2][kBatch][4], b[2][kBatch][4];
    const auto read = [&](int batch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const auto offset = static_cast<std::uint32_t>((batch * kBatch + i) * 32);
        load_matrices(a[batch % 2][i], from_a + offset);
        load_matrices(b[batch % 2][i], from_b + offset);
      }
    };
    read(0);
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      if (batch + 1 < kBatches) read(batch + 1);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        multiply_add(sums[i][0], a[batch % 2][i], b[batch % 2][i][0], b[batch % 2][i][1]);
        multiply_add(sums[i][1], a[batch % 2][i], b[batch % 2][i][2], b[batch % 2][i][3]);
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
  std::uint32_t queries_, ring_, queries_ready_, tiles_ready_;
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
