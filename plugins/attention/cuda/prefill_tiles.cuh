// Prefill with wgmma: what a block holds in shared memory, which keys its tiles are, and the thread that has them
// fetched.
#pragma once

#include "attention/cuda/tensor_maps.h"
#include "attention/cuda/work.cuh"

namespace facet::attention::cuda {

// kKeyChannelsT: 0, or channels of a key in the shared form of the cache. A tile is then one: the panels of the values,
// and behind them one of keys for each half of a head, which meets the first panel of queries of a warpgroup.
template <int kDimT, int kKeyChannelsT = 0>
struct WgmmaShape {
  static constexpr int kDim = kDimT;
  static constexpr bool kOneTile = kKeyChannelsT > 0;
  static constexpr bool kShared = kDim > 256;                 // both warpgroups work on the same queries
  static constexpr int kColumns = kShared ? kDim / 2 : kDim;  // depth of Q K^T and columns of O of a warpgroup
  static constexpr int kRows = kShared ? 64 : 128;
  static constexpr int kKeys = kOneTile ? 48 : 64;  // two stages of 64 keys in the shared form pass the memory by 30 KB
  static constexpr int kStages = kShared && !kOneTile ? 1 : 2;
  static constexpr int kThreads = 3 * 128;
  static constexpr int kPanelBytes = kKeys * 128;  // of keys and values
  static constexpr int kQueryPanelBytes = 64 * 128;
  static constexpr int kPanels = (kDim + kKeyChannelsT) / 64;
  static constexpr int kOwnPanels = kColumns / 64;
  static constexpr int kTileBytes = kPanels * kPanelBytes;
  static constexpr int kTileCount = kOneTile ? 1 : 2;  // of a stage
  static constexpr int kQueryBytes = 2 * kOwnPanels * kQueryPanelBytes;
  static constexpr int kExchangeBytes = kShared ? 2 * 64 * kKeys * 4 : 0;
  static constexpr int kSharedBytes = 1024 + kQueryBytes + kTileCount * kStages * kTileBytes + kExchangeBytes + 128;
  static_assert(kDim % 64 == 0 && kSharedBytes <= 227 * 1024);
  static_assert(!kOneTile || (kShared && kKeyChannelsT == 128));
};

// Shared memory of a block, and the barriers of its ring.
template <typename Shape>
struct WgmmaMemory {
  std::uint32_t queries, keys, values, exchange, barriers;

  __device__ explicit WgmmaMemory(const unsigned char* shared) {
    queries = (shared_address(shared) + 1023u) & ~1023u;
    keys = queries + Shape::kQueryBytes;
    values = Shape::kOneTile ? keys : keys + Shape::kStages * Shape::kTileBytes;
    exchange = values + Shape::kStages * Shape::kTileBytes;
    barriers = exchange + Shape::kExchangeBytes;
  }
  __device__ std::uint32_t barrier(int kind, int stage) const {
    return barriers + static_cast<std::uint32_t>(kind * Shape::kStages + stage) * 8;
  }
  __device__ std::uint32_t full_keys(int stage) const { return barrier(0, stage); }
  __device__ std::uint32_t full_values(int stage) const { return barrier(1, stage); }
  __device__ std::uint32_t free_keys(int stage) const { return barrier(2, stage); }
  __device__ std::uint32_t free_values(int stage) const { return barrier(3, stage); }
  __device__ std::uint32_t keys_of(int stage) const {
    return keys + static_cast<std::uint32_t>(stage * Shape::kTileBytes);
  }
  __device__ std::uint32_t values_of(int stage) const {
    return values + static_cast<std::uint32_t>(stage * Shape::kTileBytes);
  }
  __device__ void init() const {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      barrier_init(full_keys(stage), 1);
      barrier_init(full_values(stage), 1);
      barrier_init(free_keys(stage), 8);  // one arrival a warp
      barrier_init(free_values(stage), 8);
    }
    barrier_init_fence();
  }
};

// Which keys a tile holds: [position, position + kKeys), those outside [low, high) not valid. Tiles start anywhere in a
// sequence of one block, at multiples of a box in pages, and anew where a ring wraps.
class TileWalk {
 public:
  __device__ TileWalk(const KvSource& kv, const Work& work, int box_rows, int keys) : keys_(keys) {
    start_ = kv.single_block != 0 ? work.low : work.low / box_rows * box_rows;
    end_ = work.high;
    wrap_ = end_;
    if (kv.ring_rows > 0) {
      const auto ring = static_cast<int>(kv.ring_rows);
      wrap_ = min(end_, start_ + ring - start_ % ring);
    }
    first_tiles_ = (wrap_ - start_ + keys - 1) / keys;
    tiles_ = first_tiles_ + (end_ - wrap_ + keys - 1) / keys;
  }
  __device__ int tiles() const { return tiles_; }
  __device__ int position(int tile) const {
    return tile < first_tiles_ ? start_ + tile * keys_ : wrap_ + (tile - first_tiles_) * keys_;
  }
  __device__ int end(int tile) const { return tile < first_tiles_ ? wrap_ : end_; }

 private:
  int keys_, start_, end_, wrap_, first_tiles_, tiles_;
};

// The copying thread. Rows past the block are filled with zeros by the engine; boxes without a valid row stay as they
// are.
template <typename Shape>
__device__ void produce(const FlashParams& p, const TensorMaps& maps, const Work& work,
                        const WgmmaMemory<Shape>& memory, const TileWalk& walk) {
  const int box = p.box_rows;
  const std::int32_t* table = p.kv.table + work.sequence * p.kv.table_stride;
  int stage = 0;
  std::uint32_t parity = 1;  // a fresh barrier counts as passed
  for (int tile = 0; tile < walk.tiles(); ++tile) {
    const int begin = walk.position(tile);
    const int boxes = min(Shape::kKeys, walk.end(tile) - begin + box - 1) / box;
    const auto copy = [&](const CUtensorMap* map, std::uint32_t to, std::uint32_t barrier) {
      barrier_expect(barrier, boxes * box * Shape::kPanels * 128);
      for (int i = 0; i < boxes; ++i) {
        const std::uint32_t row = logical_row(p.kv, begin + i * box);
        const int block = p.kv.single_block != 0 ? work.only_block : table[row / p.kv.block_rows];
        const auto in_block = static_cast<int>(p.kv.single_block != 0 ? row : row % p.kv.block_rows);
        for (int panel = 0; panel < Shape::kPanels; ++panel) {
          tensor_copy(to + static_cast<std::uint32_t>(panel * Shape::kPanelBytes + i * box * 128), *map, panel * 64,
                      in_block, work.head, block, barrier);
        }
      }
    };
    if constexpr (!Shape::kOneTile) {
      barrier_wait(memory.free_keys(stage), parity);
      copy(&maps.keys, memory.keys_of(stage), memory.full_keys(stage));
    }
    barrier_wait(memory.free_values(stage), parity);
    copy(&maps.values, memory.values_of(stage), memory.full_values(stage));
    if (++stage == Shape::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

}  // namespace facet::attention::cuda
