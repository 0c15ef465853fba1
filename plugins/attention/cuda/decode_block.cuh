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
  // One copy a row saves instructions; rows below 1 KB pass faster as 16 bytes a thread (measured: 3.84 against 3.42
  // TB/s).
  static constexpr bool kWholeRows = !kInt8 && kRowBytes >= 1024;
  static constexpr int kStageBytes = 2 * kTileBytes * kTeams;  // keys and values of every team
  static constexpr int kScaleBytes = kInt8 ? kTeams * 2 * kKeys * 4 : 0;
  // Sums of the teams, then of the block, over the ring; 8 floats of padding part the banks.
  static constexpr int kSumStride = kDim + 8;
  static constexpr int kSumBytes = kTeams * kRows * kSumStride * 4;
  // Largest scores and sums of weights of the teams.
  static constexpr int kStatBytes = kTeams * kRows * 8;
  static constexpr int kBarrierBytes = (1 + kTeams * kMaxStages) * 8;
  // What the blocks of a cluster send each other: a slice of the sums, and the scores and sums of weights of every row.
  static constexpr int kInboxStatBytes = kMaxCluster * kRows * 8;
  static constexpr int kInboxBytes = kRows * kDim * 4;
  static constexpr int ring_bytes(int stages) {
    return stages * kStageBytes > kSumBytes ? stages * kStageBytes : kSumBytes;
  }
  static constexpr int shared_bytes(int stages, bool clustered) {
    return kTileBytes + ring_bytes(stages) + stages * kScaleBytes + kStatBytes + kBarrierBytes + kInboxStatBytes +
           (clustered ? kInboxBytes : 0);
  }
  static constexpr int most_stages(bool clustered) {
    int stages = kInt8 ? 1 : kMaxStages;
    while (shared_bytes(stages, clustered) > 226 * 1024) --stages;
    return stages;
  }
};

template <typename Shape>
inline constexpr int kMostStages = Shape::most_stages(false);

__device__ __forceinline__ int log2_of(std::int32_t power) {
  return __ffs(power) - 1;
}
// Token of a packed row below kDecodeRows, without a division.
__device__ __forceinline__ int row_token(const FlashParams& p, int row) {
  return row * p.group_inverse >> 16;
}

template <typename Shape>
class DecodeBlock {
 public:
  // Everything that needs no earlier kernel's results. The block must pass a barrier before run().
  __device__ DecodeBlock(const FlashParams& params, unsigned char* shared) : p_(params), stages_(params.stages) {
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
    at += Shape::kStatBytes;
    inbox_stats_ = reinterpret_cast<float2*>(at);
    at += Shape::kInboxStatBytes;
    // A block alone leaves its sums where its first team's are.
    inbox_ = params.cluster > 1 ? reinterpret_cast<float*>(at) : sums_;
    at += params.cluster > 1 ? Shape::kInboxBytes : 0;
    inbox_shift_ = log2_of(params.cluster);
    queries_ready_ = shared_address(at);
    tiles_ready_ = queries_ready_ + 8 + static_cast<std::uint32_t>(team_ * kMaxStages * 8);
    if (lane_ == 0 && member_ == 0) {
      for (int stage = 0; stage < stages_; ++stage) barrier_init(tiles_ready_ + stage * 8, Shape::kTeamWarps);
      if (warp_ == 0) barrier_init(queries_ready_, 1);
      barrier_init_fence();
    }
  }

  // False when no block of this cluster has any key. Waits for the predecessor.
  __device__ bool run() {
    wait_for_predecessor();
    let_successor_start();
    if (!find_work()) return false;
    const int tiles = (work_.high - work_.low + Shape::kKeys - 1) / Shape::kKeys;
    if (warp_ == 0 && tiles > 0) load_queries();
    // Tables are read for all stages before anything waits for one of them.
    constexpr int kMost = kMostStages<Shape>;
    RowPlace places[kMost];
#pragma unroll
    for (int stage = 0; stage < kMost; ++stage) {
      if (stage < stages_) places[stage] = place_of(team_ + stage * Shape::kTeams);
    }
#pragma unroll
    for (int stage = 0; stage < kMost; ++stage) {
      if (stage >= stages_) break;
      if (team_ + stage * Shape::kTeams < tiles) load(team_ + stage * Shape::kTeams, stage, places[stage]);
      if constexpr (!Shape::kWholeRows) commit_copies();
    }
    if (tiles > 0) barrier_wait(queries_ready_, 0);
    int stage = 0;
    std::uint32_t parity = 0;
    for (int tile = team_; tile < tiles; tile += Shape::kTeams) {
      const int next = tile + stages_ * Shape::kTeams;
      RowPlace place{-1, 0};
      if (next < tiles) place = place_of(next);
      wait_for_tile(stage, parity, tile + 1 == tiles);
      step(tile, stage);
      if (next < tiles) {
        team_barrier();  // the stage is done with
        load(next, stage, place);
      }
      if constexpr (!Shape::kWholeRows) commit_copies();
      if (++stage == stages_) {
        stage = 0;
        parity ^= 1;
      }
    }
    return true;
  }

  __device__ const Work& work() const {
    return work_;
  }

  // Folds the teams and sends every block of the cluster its slice of the columns. All blocks have started.
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
    if (threadIdx.x < work_.rows) weigh_teams(static_cast<int>(threadIdx.x));
    __syncthreads();
    constexpr int kQuads = Shape::kDim / 4;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < work_.rows * kQuads; i += Shape::kThreads) {
      const int row = i / kQuads;
      const int column = i % kQuads * 4;
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
      for (int t = 0; t < Shape::kTeams; ++t) {
        const float4 value = *reinterpret_cast<const float4*>(team_sums(t) + row * Shape::kSumStride + column);
        const float factor = stats_[t * Shape::kRows + row].x;
        sum.x = fmaf(factor, value.x, sum.x);
        sum.y = fmaf(factor, value.y, sum.y);
        sum.z = fmaf(factor, value.z, sum.z);
        sum.w = fmaf(factor, value.w, sum.w);
      }
      // For a block alone: over team 0, by the thread that read it.
      const int reader = inbox_shift_ == 0 ? 0 : column / inbox_columns();
      const float* to = inbox(rank(), row) + (column - reader * inbox_columns());
      store_remote4(remote_address(shared_address(to), static_cast<std::uint32_t>(reader)), sum);
    }
  }

  // Sums of a member of the cluster for this block's slice of the columns of a row.
  __device__ const float* inbox(int member, int row) const {
    return inbox_shift_ == 0 ? inbox_ + row * Shape::kSumStride
                             : inbox_ + (member * Shape::kRows + row) * inbox_columns();
  }
  // Its largest score and sum of weights of a row.
  __device__ float2 inbox_stats(int member, int row) const {
    return inbox_stats_[member * Shape::kRows + row];
  }
  __device__ int inbox_columns() const {
    return Shape::kDim >> inbox_shift_;
  }
  __device__ int rank() const {
    return static_cast<int>(blockIdx.x) & (p_.cluster - 1);
  }

 private:
  // Splits of whole 16 keys; a cluster without any leaves, a block without any stays for its cluster's barriers.
  __device__ bool find_work() {
    work_.sequence = static_cast<int>(blockIdx.z);
    work_.head = static_cast<int>(blockIdx.y);
    // The loads go out together.
    work_.token_begin = p_.token_begin[work_.sequence];
    const int tokens = p_.token_begin[work_.sequence + 1] - work_.token_begin;
    const int first = p_.first_position[work_.sequence];
    work_.only_block = p_.kv.single_block != 0 ? p_.kv.table[work_.sequence * p_.kv.table_stride] : 0;
    work_.rows = tokens * p_.group;
    if (work_.rows == 0 || work_.rows > p_.decode_rows) return false;
    const int low = p_.window > 0 ? max(0, first - p_.window + 1) : 0;
    const int high = first + tokens;
    const int share = ((high - low + p_.splits - 1) / p_.splits + 15) & ~15;
    work_.parts = (high - low + share - 1) / share;
    const auto part = static_cast<int>(blockIdx.x);
    if ((part & ~(p_.cluster - 1)) >= work_.parts) return false;
    work_.low = min(low + part * share, high);
    work_.high = min(high, work_.low + share);
    for (int half = 0; half < 2; ++half) {
      const int row = lane_ / 4 + half * 8;
      if (row < work_.rows) query_position_[half] = first + row_token(p_, row);
    }
    return true;
  }
  __device__ void wait_for_tile(int stage, std::uint32_t parity, bool last) const {
    if constexpr (Shape::kWholeRows) {
      barrier_wait(tiles_ready_ + static_cast<std::uint32_t>(stage * 8), parity);
      if (last) team_barrier();  // rows that were cleared by stores
    } else {
      // Tiles are committed in order, one group each; all but the newest stages_ - 1 must be there.
      if (stages_ == 1) {
        wait_copies<0>();
      } else if (stages_ == 2) {
        wait_copies<1>();
      } else if (stages_ == 3) {
        wait_copies<2>();
      } else {
        wait_copies<3>();
      }
      team_barrier();
    }
  }

  // The teams' largest scores become their factors; the block's go to the cluster.
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
    const std::uint32_t to = shared_address(inbox_stats_ + rank() * Shape::kRows + row);
    for (int reader = 0; reader < p_.cluster; ++reader) {
      store_remote2(remote_address(to, static_cast<std::uint32_t>(reader)), make_float2(most, weights));
    }
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
    const int in_step = row_token(p_, lane_);
    const std::int64_t token = work_.token_begin + in_step;
    const int head = work_.head * p_.group + lane_ - in_step * p_.group;
    copy_row_async(queries_ + static_cast<std::uint32_t>(lane_ * Shape::kPitch),
                   static_cast<const __nv_bfloat16*>(p_.queries) + token * p_.query_stride + head * Shape::kDim,
                   Shape::kRowBytes, queries_ready_);
  }

  // A warp fills its share of the rows of a tile; lane r knows where row r lies.
  static constexpr int kWarpRows = Shape::kKeys / Shape::kTeamWarps;
  __device__ int own_row() const {
    return member_ * kWarpRows + lane_ % kWarpRows;
  }
  __device__ RowPlace place_of(int tile) const {
    return find_row(p_.kv, work_.sequence, work_.head, work_.only_block, work_.low + tile * Shape::kKeys + own_row(),
                    work_.low, work_.high);
  }
  __device__ void load(int tile, int stage, RowPlace place) const {
    const int row = own_row();
    const std::uint32_t to = keys(stage);
    if constexpr (Shape::kInt8) {
      float* scales = scales_ + stage * 2 * Shape::kKeys;
      if (lane_ < kWarpRows) {
        scales[row] = place.offset >= 0 ? p_.kv.key_scales[place.scale] : 0.0f;
        scales[Shape::kKeys + row] = place.offset >= 0 ? p_.kv.value_scales[place.scale] : 0.0f;
      }
      copy_chunks(to, place.offset);
    } else if constexpr (!Shape::kWholeRows) {
      copy_chunks(to, place.offset);
    } else {
      const std::uint32_t barrier = tiles_ready_ + static_cast<std::uint32_t>(stage * 8);
      const int valid = min(max(work_.high - work_.low - tile * Shape::kKeys - member_ * kWarpRows, 0), kWarpRows);
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
  __device__ void copy_chunks(std::uint32_t to, std::int64_t own_offset) const {
#pragma unroll(Shape::kInt8 ? 8 : 4)
    for (int i = lane_; i < kWarpRows * Shape::kChunks; i += 32) {
      const int row = i / Shape::kChunks;
      const int chunk = i % Shape::kChunks;
      const std::int64_t offset = __shfl_sync(0xffffffffu, own_offset, row);
      const std::uint32_t at = address(to, member_ * kWarpRows + row, chunk);
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
  Work work_{};
  const int stages_;
  std::uint32_t queries_, ring_, queries_ready_, tiles_ready_;
  float* sums_;
  float* scales_;
  float2* stats_;
  float2* inbox_stats_;
  float* inbox_;
  int inbox_shift_;
  int warp_, lane_, team_, member_;
  int query_position_[2] = {-1, -1};
  float out_[Shape::kColumnTiles][4] = {};
  float largest_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0.0f, 0.0f};
};

}  // namespace facet::attention::cuda
