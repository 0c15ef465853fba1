// A block of the decode kernel for few rows (decode_few.cuh). Each team is a warp that multiplies and one that fetches
// its tiles. To ask for the rows of a tile takes a warp longer than its products, whether a copy is of a row or of 16
// bytes, so who multiplies does not ask. Keys and values have places of their own, which are free as soon as they are
// read.
#pragma once

#include "attention/cuda/decode_block.cuh"
#include "attention/cuda/wgmma.cuh"

namespace facet::attention::cuda {

// Registers of a thread at the launch, then by the part of its warpgroup. With 128 a block takes 8,192 of a quarter of
// the processor; a block of w4a16_stream for one or two rows leaves 7,168, which is a block's that goes beside one.
template <typename Shape>
constexpr int kFewRegisters = Shape::kBeside ? 112 : 128;
template <typename Shape>
constexpr int kFewMultiplyRegisters = Shape::kBeside ? 176 : 208;
constexpr int kFewFetchRegisters = 48;

template <typename Shape>
class DecodeFewBlock : public DecodeBlock<Shape> {
 public:
  // Everything that needs no earlier kernel's results. The block must pass a barrier before run() and fetch().
  __device__ DecodeFewBlock(const FlashParams& params, unsigned char* shared) : DecodeBlock<Shape>(params, shared) {
    row_made_ = queries_ready_ + 8;
    tiles_ready_ = row_made_ + 8 + static_cast<std::uint32_t>(team_ * kMaxStages * 16);
    if (lane_ != 0 || fetches()) return;
    for (int at = 0; at < stages_; ++at) {
      barrier_init(full(at), 1);
      barrier_init(empty(at), 1);
    }
    if (warp_ == 0) {
      barrier_init(queries_ready_, 1);
      barrier_init(row_made_, Shape::kWarps);
    }
    barrier_init_fence();
  }

  __device__ bool fetches() const { return warp_ >= Shape::kWarps; }

  // The warps that multiply. False when no block of this cluster has any key.
  __device__ bool run() {
    let_successor_begin();
    if (!find_work()) {
      wait_for_predecessor();
      return false;
    }
    const int tiles = find_tiles();
    if constexpr (Shape::kPrepares) {
      prepare(tiles);
    } else {
      wait_for_predecessor();
      if (warp_ == 0 && tiles > 0) load_queries();
      if (tiles > 0) barrier_wait(queries_ready_, 0);
    }
    if (tiles > 0) walk(tiles);
    return true;
  }

  // The others. Keys of earlier steps are asked for while the predecessor, which makes the step's own rows, still runs.
  __device__ void fetch() {
    if (!find_work()) return;
    const int tiles = find_tiles();
    bool settled = false;
    Place place;
    place.parity = 1;
    RowPlace next = place_of(team_);
#pragma unroll 1
    for (int tile = team_; tile < tiles; tile += Shape::kTeams) {
      const RowPlace rows = next;
      if (tile + Shape::kTeams < tiles) next = place_of(tile + Shape::kTeams);
      if (!settled && !is_old(tile)) {
        if constexpr (Shape::kPrepares) {
          if (made_ < 0) barrier_wait(row_made_, 0);
        } else {
          wait_for_predecessor();
        }
        settled = true;
      }
      copy(p_.kv.keys, rows, place, false);
      copy(p_.kv.values, rows, place, true);
    }
  }

 private:
  using Block = DecodeBlock<Shape>;
  using Block::find_work, Block::load_queries, Block::makes_newest, Block::tiles_of_share, Block::p_, Block::work_,
      Block::stages_, Block::ring_, Block::team_, Block::lane_, Block::warp_, Block::made_, Block::queries_,
      Block::queries_ready_, Block::tiles_ready_, Block::is_old, Block::place_of, Block::kMadeHere;

  // A place of the ring and how often it came round.
  struct Place {
    int at = 0;
    std::uint32_t parity = 0;
    __device__ void next(int places) {
      if (++at < places) return;
      at = 0;
      parity ^= 1;
    }
  };
  __device__ std::uint32_t full(int at) const {
    return tiles_ready_ + static_cast<std::uint32_t>(at * 16);
  }
  __device__ std::uint32_t empty(int at) const {
    return full(at) + 8;
  }
  __device__ std::uint32_t tile_of(int at) const {
    return ring_ + static_cast<std::uint32_t>(at * Shape::kTileBytes);
  }
  // Tiles of the block. The newest row is made in the ring when both halves of its tile are the first in their places.
  __device__ int find_tiles() {
    const int tiles = tiles_of_share();
    has_newest_ = makes_newest(tiles);
    if (has_newest_ && (tiles - 1) / Shape::kTeams * 2 + 1 < stages_) made_ = work_.first_position;
    return tiles;
  }

  // Keys or values of a tile to the next place, a row a lane.
  __device__ void copy(const void* pool, const RowPlace& rows, Place& place, bool values) const {
    const std::uint32_t tile = tile_of(place.at);
    const bool there = lane_ < Shape::kKeys && rows.offset >= 0;
    const unsigned known = __ballot_sync(0xffffffffu, lane_ >= Shape::kKeys || rows.offset != -1);
    barrier_wait(empty(place.at), place.parity);
    // A weight of zero times what memory held may be NaN.
    if (values && known != 0xffffffffu) {
#pragma unroll 1
      for (int row = 0; row < Shape::kKeys; ++row) {
        if ((known >> row & 1u) == 0) store16(Shape::address(tile, row, lane_), make_uint4(0, 0, 0, 0));
      }
      __syncwarp();
    }
    const int copies = __popc(__ballot_sync(0xffffffffu, there));
    if (lane_ == 0) barrier_expect(full(place.at), static_cast<std::uint32_t>(copies * Shape::kRowBytes));
    __syncwarp();
    if (there)
      bulk_copy(tile + static_cast<std::uint32_t>(lane_ * Shape::kPitch),
                static_cast<const __nv_bfloat16*>(pool) + rows.offset, Shape::kRowBytes, full(place.at));
    place.next(stages_);
  }

  // Waits for the predecessor and makes the queries and, in the block of the newest key, its row. All other rows are of
  // earlier steps.
  __device__ void prepare(int tiles) {
    if (tiles == 0) {
      wait_for_predecessor();
      return;
    }
    NewRow row;
    if (has_newest_) {
      const int tile = tiles - 1;
      row.place = find_row(p_.kv, work_.sequence, work_.kv_head, work_.only_block, work_.first_position,
                           work_.first_position, work_.high);
      const int places_on =
          (tile % Shape::kTeams - team_) * stages_ + tile / Shape::kTeams * 2;  // from this team's first
      row.tile = tile_of(places_on);
      row.in_tile = work_.high - 1 - work_.low - tile * Shape::kKeys;
      row.in_ring = made_ >= 0;
    }
    DecodeInputs<Shape> inputs(p_, work_, warp_, lane_, has_newest_);
    wait_for_predecessor();
    inputs.ask();
    inputs.make(queries_, row);
    __syncwarp();
    if (lane_ == 0) barrier_arrive(row_made_);
    block_sync<Shape>();
  }

  __device__ void walk(int tiles) {
    this->take_queries(queries_);
    Place place;
#pragma unroll 1
    for (int tile = team_; tile < tiles; tile += Shape::kTeams) {
      float score[4];
      barrier_wait(full(place.at), place.parity);
      this->multiply_keys(tile_of(place.at), score);
      give_back(place);
      this->mask(p_, work_.high, work_.low + tile * Shape::kKeys, score);
      std::uint32_t weights[2];
      this->weigh(score, weights);
      barrier_wait(full(place.at), place.parity);
      this->add_values(tile_of(place.at), weights);
      give_back(place);
    }
  }
  __device__ void give_back(Place& place) const {
    __syncwarp();  // all lanes have read
    if (lane_ == 0) barrier_arrive(empty(place.at));
    place.next(stages_);
  }

  std::uint32_t row_made_;
  bool has_newest_ = false;
};

}  // namespace facet::attention::cuda
