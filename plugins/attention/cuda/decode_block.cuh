// Decode: one block walks a share of the keys of one (sequence, KV head) for up to 16 packed queries.
//
// Teams of warps walk tiles of 16 keys of their own: after the queries are there, no barrier of the block until the
// end, when the teams' sums are folded in their order.
#pragma once

#include "attention/cuda/decode_inputs.cuh"
#include "attention/cuda/decode_ring.cuh"

namespace facet::attention::cuda {

template <typename Shape>
class DecodeBlock : protected DecodeRing<Shape> {
 public:
  // Everything that needs no earlier kernel's results. The block must pass a barrier before run().
  __device__ DecodeBlock(const FlashParams& params, unsigned char* shared) : DecodeRing<Shape>(params) {
    warp_ = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
    team_ = warp_ / Shape::kTeamWarps % Shape::kTeams;
    member_ = warp_ % Shape::kTeamWarps;
    queries_ = shared_address(shared);
    ring_ = queries_ + Shape::kQueryBytes +
            static_cast<std::uint32_t>(team_ * stages_ * (Shape::kStageBytes / Shape::kTeams));
    unsigned char* at = shared + Shape::kQueryBytes;
    sums_ = reinterpret_cast<float*>(at);
    at += ring_bytes();
    scales_ = reinterpret_cast<float*>(at) + team_ * stages_ * 2 * Shape::kKeys;
    at += stages_ * Shape::kScaleBytes;
    exchange_ = reinterpret_cast<float4*>(at) + team_ * Shape::kTeamWarps * 64;
    at += Shape::kExchangeBytes;
    stats_ = reinterpret_cast<float2*>(at);
    at += Shape::kStatBytes;
    inbox_stats_ = reinterpret_cast<float2*>(at);
    at += Shape::kInboxStatBytes;
    // A block alone leaves its sums where its first team's are.
    inbox_ = params.cluster > 1 ? reinterpret_cast<float*>(at) : sums_;
    at += params.cluster > 1 ? params.inbox_rows * Shape::kInboxRowBytes : 0;
    inbox_shift_ = log2_of(params.cluster);
    queries_ready_ = shared_address(at);
    tiles_ready_ = queries_ready_ + 8 + static_cast<std::uint32_t>(team_ * kMaxStages * 8);
    if constexpr (Shape::kFew) return;  // its barriers are others
    if (lane_ == 0 && member_ == 0) {
      for (int stage = 0; stage < stages_; ++stage) barrier_init(tiles_ready_ + stage * 8, Shape::kTeamWarps);
      if (warp_ == 0) barrier_init(queries_ready_, 1);
      barrier_init_fence();
    }
  }

  // False when no block of this cluster has any key. Keys of earlier steps are asked for while the predecessor, which
  // makes the queries and the step's own rows, still runs.
  __device__ bool run() {
    let_successor_begin();
    if (!find_work()) {
      wait_for_predecessor();
      return false;
    }
    const int tiles = tiles_of_share();
    const bool newest = makes_newest(tiles);
    if (newest && (tiles - 1) / Shape::kTeams < stages_) made_ = work_.first_position;
    // Tables are read for all stages before anything waits for one of them.
    constexpr int kMost = kMostStages<Shape>;
    typename Ring::FirstTiles first;
#pragma unroll
    for (int stage = 0; stage < kMost; ++stage) {
      if (stage < stages_) first.places[stage] = place_of(team_ + stage * Shape::kTeams);
    }
    if constexpr (Shape::kPrepares) {
      prepare(newest, tiles, first);
    } else {
      // Tiles are committed in their order: with the first that needs the predecessor the early part is over.
      int early = 0;
      while (early < stages_ && is_old(team_ + early * Shape::kTeams)) ++early;
      fill_ring(first, 0, early, tiles);
      wait_for_predecessor();
      if (warp_ == 0 && tiles > 0) load_queries();
      fill_ring(first, early, stages_, tiles);
      if constexpr (Shape::kInt8) store_scales(first, tiles);
      if (tiles > 0) barrier_wait(queries_ready_, 0);
      if constexpr (Shape::kInt8) {
        if (tiles > 0) {
          arrange_for_codes<Shape::kDim / 16, Shape::kThreads>(queries_, Shape::kQueryPitch, work_.rows);
          __syncthreads();
        }
      }
    }
    int stage = 0;
    std::uint32_t parity = 0;
    for (int tile = team_; tile < tiles; tile += Shape::kTeams) {
      const int next = tile + stages_ * Shape::kTeams;
      RowPlace place{-1, 0};
      float scale = 0.0f;
      if (next < tiles) {
        place = place_of(next);
        if constexpr (Shape::kInt8) scale = ask_scale(place);
      }
      wait_for_tile(stage, parity, tile + 1 == tiles);
      step(tile, stage);
      if (next < tiles) {
        team_barrier();  // the stage is done with
        load(next, stage, place);
        if constexpr (Shape::kInt8) store_scale(stage, place, scale);
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
    block_sync<Shape>();  // the ring is done with
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_row(sum_[half]);
      const int row = row_of(half);
      if (row >= work_.rows) continue;
      if (member_ == 0 && speaks_for_row()) stats_[team_ * Shape::kRows + row] = make_float2(largest_[half], sum);
      store_sums(half, team_sums(team_) + row * Shape::kSumStride);
    }
    block_sync<Shape>();
    for (int row = warp_; row < work_.rows; row += Shape::kWarps) weigh_teams(row);
    block_sync<Shape>();
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
      store_remote4(cluster_address(shared_address(to), static_cast<std::uint32_t>(reader)), sum);
    }
  }

  // Sums of a member of the cluster for this block's slice of the columns of a row.
  __device__ const float* inbox(int member, int row) const {
    return inbox_shift_ == 0 ? inbox_ + row * Shape::kSumStride
                             : inbox_ + (member * p_.inbox_rows + row) * inbox_columns();
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

 protected:
  using Math = DecodeProducts<Shape>;
  using Math::add_values, Math::mask, Math::multiply_keys, Math::row_of, Math::speaks_for_row, Math::store_sums,
      Math::sum_of_row, Math::weigh;
  using Math::lane_, Math::member_, Math::query_position_, Math::out_, Math::largest_, Math::sum_;
  using Ring = DecodeRing<Shape>;
  using Ring::add_other_half, Ring::ask_scale, Ring::exchange_, Ring::fill_ring, Ring::is_old, Ring::keys, Ring::load,
      Ring::place_of, Ring::store_scale, Ring::store_scales, Ring::team_barrier, Ring::wait_for_tile;
  using Ring::p_, Ring::work_, Ring::stages_, Ring::ring_, Ring::tiles_ready_, Ring::scales_, Ring::team_, Ring::made_,
      Ring::seen_;

  // Splits of whole 16 keys; a cluster without any leaves, a block without any stays for its cluster's barriers.
  __device__ bool find_work() {
    work_.sequence = static_cast<int>(blockIdx.z);
    work_.head = static_cast<int>(blockIdx.y);
    work_.kv_head = work_.head >> p_.head_shift;
    // The loads go out together.
    work_.token_begin = p_.token_begin[work_.sequence];
    const int tokens = p_.token_begin[work_.sequence + 1] - work_.token_begin;
    const int first = p_.first_position[work_.sequence];
    work_.first_position = first;
    work_.only_block = p_.kv.single_block != 0 ? p_.kv.table[work_.sequence * p_.kv.table_stride] : 0;
    work_.rows = tokens * p_.group;
    if (work_.rows == 0 || work_.rows > p_.decode_rows) return false;
    seen_ = p_.window > 0 ? max(0, first - p_.window + 1) : 0;
    const int high = first + tokens;
    const int share = ((high - seen_ + p_.splits - 1) / p_.splits + 15) & ~15;
    work_.parts = (high - seen_ + share - 1) / share;
    const auto part = static_cast<int>(blockIdx.x);
    if ((part & ~(p_.cluster - 1)) >= work_.parts) return false;
    work_.low = min(seen_ + part * share, high);
    work_.high = min(high, work_.low + share);
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(half);
      if (row < work_.rows) query_position_[half] = first + row_token(p_, row);
    }
    return true;
  }
  __device__ int tiles_of_share() const {
    return (work_.high - work_.low + Shape::kKeys - 1) / Shape::kKeys;
  }
  // Whether this share ends with the newest key; its block makes that row.
  __device__ bool makes_newest(int tiles) const {
    return Shape::kPrepares && tiles > 0 && work_.high > work_.first_position;
  }
  // Waits for the predecessor and makes the queries and, in the block of the newest key, its row. All other rows are of
  // earlier steps, but what is asked for takes its turn: after the first tiles come the inputs of the queries, so that
  // the first tiles are done with when the last ones are there.
  __device__ void prepare(bool newest, int tiles, typename Ring::FirstTiles& first) {
    if (tiles == 0) {
      wait_for_predecessor();
      return;
    }
    fill_ring(first, 0, 1, tiles);
    NewRow row;
    if (newest) {
      const int tile = tiles - 1;
      const int in_tile = work_.high - 1 - work_.low - tile * Shape::kKeys;
      const int stages_on = (tile % Shape::kTeams - team_) * stages_ + tile / Shape::kTeams;  // from this team's first
      row.place = find_row(p_.kv, work_.sequence, work_.kv_head, work_.only_block, work_.first_position,
                           work_.first_position, work_.high);
      row.tile = ring_ + static_cast<std::uint32_t>(stages_on * Shape::kTeamBytes);
      row.in_tile = in_tile;
      row.scales = scales_ + stages_on * 2 * Shape::kKeys + in_tile;
      row.in_ring = made_ >= 0;
    }
    DecodeInputs<Shape> inputs(p_, work_, warp_, lane_, newest);
    wait_for_predecessor();
    inputs.ask();
    fill_ring(first, 1, stages_, tiles);
    if constexpr (Shape::kInt8) store_scales(first, tiles);
    inputs.make(queries_, row);
    __syncthreads();
  }
  // The teams' largest scores become their factors; the block's go to the cluster. By a warp.
  __device__ void weigh_teams(int row) {
    float most = -INFINITY;
    for (int t = 0; t < Shape::kTeams; ++t) most = fmaxf(most, stats_[t * Shape::kRows + row].x);
    const float base = most == -INFINITY ? 0.0f : most;
    float weights = 0.0f, own = 0.0f;
    for (int t = 0; t < Shape::kTeams; ++t) {
      const float2 of_team = stats_[t * Shape::kRows + row];
      const float factor = exp2_fast(of_team.x - base);
      weights = fmaf(factor, of_team.y, weights);
      if (lane_ == t) own = factor;
    }
    __syncwarp();
    if (lane_ < Shape::kTeams) stats_[lane_ * Shape::kRows + row].x = own;
    const std::uint32_t to = shared_address(inbox_stats_ + rank() * Shape::kRows + row);
    if (lane_ < p_.cluster)
      store_remote2(cluster_address(to, static_cast<std::uint32_t>(lane_)), make_float2(most, weights));
  }

  __device__ int ring_bytes() const {
    const int bytes = stages_ * Shape::kStageBytes;
    return bytes > Shape::kSumBytes ? bytes : Shape::kSumBytes;
  }
  __device__ float* team_sums(int team) const {
    return sums_ + team * Shape::kRows * Shape::kSumStride;
  }
  // Rows past the last query keep what memory held: a row of scores is its own, and these are masked and not written.
  __device__ void load_queries() const {
    if (lane_ == 0) barrier_expect(queries_ready_, work_.rows * Shape::kQueryRowBytes);
    __syncwarp();
    if (lane_ >= work_.rows) return;
    const int in_step = row_token(p_, lane_);
    const std::int64_t token = work_.token_begin + in_step;
    const int head = work_.head * p_.group + lane_ - in_step * p_.group;
    bulk_copy(queries_ + static_cast<std::uint32_t>(lane_ * Shape::kQueryPitch),
              static_cast<const __nv_bfloat16*>(p_.queries) + token * p_.query_stride + head * Shape::kDim,
              Shape::kQueryRowBytes, queries_ready_);
  }

  __device__ void step(int tile, int stage) {
    float score[2][4];
    if constexpr (Shape::kInt8) {
      this->multiply_codes(queries_, keys(stage), score);
      if constexpr (Shape::kSharesDepth) add_other_half(score);
    } else {
      multiply_keys(queries_, keys(stage), score);
    }
    const float* scales = scales_ + stage * 2 * Shape::kKeys;
    const int first = work_.low + tile * Shape::kKeys;
    // A step of one token: no share begins before its window, and `high` is behind its key at most. The vote tells nvcc
    // that lanes do not part.
    if (Shape::kInt8 &&
        __all_sync(0xffffffffu, work_.rows <= p_.group && first + Shape::kKeys <= work_.high ? 1 : 0) != 0) {
      this->scale(p_, scales, score);
    } else {
      mask(p_, work_.high, first, scales, score);
    }
    std::uint32_t weights[4];
    weigh(scales + Shape::kKeys, score, weights);
    if constexpr (Shape::kInt8) {
      this->add_codes(keys(stage) + Shape::kValueOffset, weights);
    } else {
      add_values(keys(stage) + Shape::kValueOffset, weights);
    }
  }

  std::uint32_t queries_, queries_ready_;
  float* sums_;
  float2* stats_;
  float2* inbox_stats_;
  float* inbox_;
  int inbox_shift_;
  int warp_;
};

}  // namespace facet::attention::cuda
