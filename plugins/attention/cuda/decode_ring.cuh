// The tiles of keys and values that a team walks, in a ring of stages that it fills itself.
#pragma once

#include <type_traits>

#include "attention/cuda/decode_few.cuh"
#include "attention/cuda/decode_math.cuh"

namespace facet::attention::cuda {

template <typename Shape>
using DecodeProducts = std::conditional_t<Shape::kFew, DecodeFew<Shape>, DecodeMath<Shape>>;

template <typename Shape>
class DecodeRing : protected DecodeProducts<Shape> {
 protected:
  __device__ explicit DecodeRing(const FlashParams& params) : p_(params), stages_(params.stages), divide_(params.kv) {}

  // Whether earlier steps wrote all rows of a tile, those past the end of the share left out.
  __device__ bool is_old(int tile) const {
    return min(work_.low + (tile + 1) * Shape::kKeys, work_.high) <= work_.first_position;
  }
  // The first tile of each stage: its place, and for int8 the scale that this lane has asked for.
  struct FirstTiles {
    RowPlace places[kMostStages<Shape>];
    float scales[kMostStages<Shape>];
  };
  __device__ void fill_ring(FirstTiles& tiles_of, int first, int last, int tiles) const {
#pragma unroll
    for (int stage = 0; stage < kMostStages<Shape>; ++stage) {
      if (stage < first || stage >= last) continue;
      if (team_ + stage * Shape::kTeams < tiles) {
        if constexpr (Shape::kInt8) tiles_of.scales[stage] = ask_scale(tiles_of.places[stage]);
        load(team_ + stage * Shape::kTeams, stage, tiles_of.places[stage]);
      }
      if constexpr (!Shape::kWholeRows) commit_copies();
    }
  }
  // Waits for the scales: when all else has been asked for.
  __device__ void store_scales(const FirstTiles& tiles_of, int tiles) const {
#pragma unroll
    for (int stage = 0; stage < kMostStages<Shape>; ++stage) {
      if (stage < stages_ && team_ + stage * Shape::kTeams < tiles)
        store_scale(stage, tiles_of.places[stage], tiles_of.scales[stage]);
    }
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

  __device__ std::uint32_t keys(int stage) const {
    return ring_ + static_cast<std::uint32_t>(stage * Shape::kTeamBytes);
  }
  __device__ void team_barrier() const {
    if constexpr (Shape::kTeamWarps == 1) {
      __syncwarp();
    } else {
      named_sync(1 + team_, Shape::kTeamWarps * 32);
    }
  }
  // Scores over the whole depth, from those of both warps of the team. The next tile's wait keeps them apart from its
  // own.
  __device__ void add_other_half(float (&score)[2][4]) const {
    float4* own = exchange_ + member_ * 64 + lane_;
    for (int n = 0; n < 2; ++n) own[n * 32] = make_float4(score[n][0], score[n][1], score[n][2], score[n][3]);
    team_barrier();
    const float4* other = exchange_ + (1 - member_) * 64 + lane_;
    for (int n = 0; n < 2; ++n) {
      const float4 more = other[n * 32];
      score[n][0] += more.x;
      score[n][1] += more.y;
      score[n][2] += more.z;
      score[n][3] += more.w;
    }
  }

  static constexpr std::int64_t kMadeHere = -2;  // in the place of an offset
  // A warp fills its share of the rows of a tile; lane r knows where row r lies.
  static constexpr int kWarpRows = Shape::kKeys / Shape::kTeamWarps;
  __device__ int own_row() const {
    return member_ * kWarpRows + lane_ % kWarpRows;
  }
  __device__ RowPlace place_of(int tile) const {
    const int position = work_.low + tile * Shape::kKeys + own_row();
    if (Shape::kPrepares && position == made_) return {kMadeHere, 0};
    // No share begins before seen_, but without it nvcc 13.0 spills more for 512 columns: 19 stores instead of 8, some
    // of them in the walk over tiles.
    return find_row(p_.kv, work_.sequence, work_.kv_head, work_.only_block, position, max(work_.low, seen_), work_.high,
                    divide_);
  }
  // int8: the scale that this lane brings for its row of a tile, of the key in lanes [0, kWarpRows), of the value in
  // the next. Asked for when the place is known and stored when the stage is free. From L2: a line of L1 may be older
  // than the rows that the predecessor wrote.
  __device__ float ask_scale(RowPlace place) const {
    if (lane_ >= 2 * kWarpRows || place.offset < 0) return 0.0f;
    return __ldcg((lane_ < kWarpRows ? p_.kv.key_scales : p_.kv.value_scales) + place.scale);
  }
  __device__ void store_scale(int stage, RowPlace place, float scale) const {
    if (lane_ >= 2 * kWarpRows || (Shape::kPrepares && place.offset == kMadeHere)) return;
    scales_[(stage * 2 + lane_ / kWarpRows) * Shape::kKeys + own_row()] = scale;
  }
  __device__ void load(int tile, int stage, RowPlace place) const {
    const int row = own_row();
    const std::uint32_t to = keys(stage);
    if constexpr (Shape::kInt8) {
      copy_codes(to, place.offset);
    } else if constexpr (!Shape::kWholeRows) {
      copy_chunks(to, place.offset);
    } else {
      const std::uint32_t barrier = tiles_ready_ + static_cast<std::uint32_t>(stage * 8);
      const int valid = min(max(work_.high - work_.low - tile * Shape::kKeys - member_ * kWarpRows, 0), kWarpRows);
      // The row that is made here is the last one.
      const bool made =
          Shape::kPrepares && valid > 0 && made_ == work_.low + tile * Shape::kKeys + member_ * kWarpRows + valid - 1;
      const int copied = made ? valid - 1 : valid;
      constexpr int kCopies = Shape::kShared ? 1 : 2;
      if (lane_ == 0) barrier_expect(barrier, copied * kCopies * Shape::kRowBytes);
      __syncwarp();
      if (lane_ < copied) {
        const std::uint32_t at = to + static_cast<std::uint32_t>(row * Shape::kPitch);
        if constexpr (!Shape::kShared) {
          bulk_copy(at, static_cast<const __nv_bfloat16*>(p_.kv.keys) + place.offset, Shape::kRowBytes, barrier);
        }
        bulk_copy(at + Shape::kValueOffset, static_cast<const __nv_bfloat16*>(p_.kv.values) + place.offset,
                  Shape::kRowBytes, barrier);
      }
      // A weight of zero times what memory held may be NaN.
      for (int i = valid * Shape::kChunks + lane_; i < kWarpRows * Shape::kChunks; i += 32) {
        store16(Shape::address(to + Shape::kValueOffset, member_ * kWarpRows + i / Shape::kChunks, i % Shape::kChunks),
                make_uint4(0, 0, 0, 0));
      }
    }
  }
  __device__ void copy_chunks(std::uint32_t to, std::int64_t own_offset) const {
#pragma unroll 4
    for (int i = lane_; i < kWarpRows * Shape::kChunks; i += 32) {
      const int row = i / Shape::kChunks;
      const int chunk = i % Shape::kChunks;
      const std::int64_t offset = __shfl_sync(0xffffffffu, own_offset, row);
      if (Shape::kPrepares && offset == kMadeHere) continue;
      const std::uint32_t at = Shape::address(to, member_ * kWarpRows + row, chunk);
      if constexpr (!Shape::kShared) copy_chunk<false>(at, p_.kv.keys, offset, chunk);
      copy_chunk<false>(at + Shape::kValueOffset, p_.kv.values, offset, chunk);
    }
  }
  // Rows that must not be read stay what memory held: a weight of zero times any code is zero.
  __device__ void copy_codes(std::uint32_t to, std::int64_t own_offset) const {
    constexpr unsigned kCopies = kWarpRows * Shape::kChunks, kChunks = Shape::kChunks;
    static_assert(kCopies % 32 == 0);
    const auto lane = static_cast<unsigned>(lane_);
    const std::uint32_t from = Shape::address(to, member_ * kWarpRows, 0);
    __syncwarp();
#pragma unroll 4
    for (unsigned first = 0; first < kCopies; first += 32) {
      // Where rows and turns are multiples of each other only the row differs from turn to turn, by a constant.
      const unsigned row = first % kChunks == 0 ? first / kChunks + lane / kChunks : (first + lane) / kChunks;
      const unsigned in_row = first % kChunks == 0 ? lane % kChunks * 16 : (first + lane) % kChunks * 16;
      const std::int64_t offset = __shfl_sync(0xffffffffu, own_offset, static_cast<int>(row));
      const std::uint32_t at = from + row * Shape::kPitch + in_row;
      if (offset < 0) continue;
      copy16_async(at, static_cast<const std::int8_t*>(p_.kv.keys) + in_row + offset, true);
      copy16_async(at + Shape::kValueOffset, static_cast<const std::int8_t*>(p_.kv.values) + in_row + offset, true);
    }
  }

  const FlashParams& p_;
  Work work_{};
  const int stages_;
  // Half the bytes a tile leave less time for a division.
  const std::conditional_t<Shape::kInt8, DivisionByInverse, Division> divide_;
  std::uint32_t ring_, tiles_ready_;
  float* scales_;
  float4* exchange_;  // where the team's warps share the depth: the scores of each
  int team_;
  int seen_ = 0;   // first position that a query sees
  int made_ = -1;  // position whose row is made in the ring instead of loaded

  using DecodeProducts<Shape>::lane_, DecodeProducts<Shape>::member_;
};

}  // namespace facet::attention::cuda
