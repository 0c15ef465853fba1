// Which cut is fastest: a model of the time of a product, in microseconds, from measurements on an H200.
#include <algorithm>
#include <iterator>
#include <limits>

#include "facet/sdk/numeric.h"
#include "quant_gptq/cuda/w4a16_wgmma/layout.h"

namespace facet::linear {

namespace {

// What a block takes for a chunk of int4 codes, by forms as in kTileForms: unpacking and the memory's rate at few
// columns, the tensor cores at many. From 30720 x 3840, less start and writing below.
constexpr double kChunkTime[] = {0.627,         //
                                 0.683, 0.379,  //
                                 0.761, 0.420,  //
                                 0.877,         //
                                 1.035, 0.573,  //
                                 1.364, 0.898, 1.749};
static_assert(std::size(kChunkTime) == std::size(kTileForms));
constexpr double kByteCodes = 0.07;  // more for int8, for each unit of the tile
constexpr double kStart = 3.0;       // launch, first bytes and last sums
constexpr double kWrite = 0.0015;    // writing a column of a tile, for each of its units
constexpr double kCluster = 0.8;     // waiting for the other blocks of a cluster, and
constexpr double kSplit = 0.35;      // reading the sums of one

double time_of(const Rows32& shape, const TileChoice& choice, double chunk_time, std::int64_t rounds) {
  const double chunks = static_cast<double>(sdk::ceil_div(shape.chunks, choice.splits));
  const int units = tile_units(choice.form);
  if (shape.bits == 8) chunk_time += kByteCodes * units;
  const double tile = chunks * chunk_time + kWrite * choice.form.columns * units;
  return kStart + static_cast<double>(rounds) * tile + (choice.splits > 1 ? kCluster + kSplit * choice.splits : 0.0);
}

// Fills shared memory with stages; false when not even two fit.
bool make_ring(const Rows32& shape, TileChoice& choice) {
  const int fixed = tile_fixed_bytes(choice.form);
  // A block of a cluster keeps its sums where the ring was.
  const int partial = choice.splits > 1 ? tile_partial_bytes(choice.form) : 0;
  const int chunks = static_cast<int>(sdk::ceil_div(shape.chunks, choice.splits));
  // Longer stages are fewer to wait for and longer runs of memory, but a block needs some to be ahead.
  for (int stage_chunks = 4; stage_chunks >= 1; stage_chunks /= 2) {
    if (stage_chunks > 1 && 4 * stage_chunks > chunks + 1) continue;
    const int stage = stage_chunks * (choice.form.columns * kColumnBytes + tile_units(choice.form) * shape.chunk_bytes);
    const int stages = std::min(kMaxStages, (kSharedPerBlock - fixed) / stage);
    const int shared = fixed + std::max(stages * stage, partial);
    if (stages < 2 || shared > kSharedPerBlock) continue;
    choice.stages = stages;
    choice.stage_chunks = stage_chunks;
    choice.shared_bytes = shared;
    return true;
  }
  return false;
}

}  // namespace

TileChoice choose_tile(const Rows32& shape, int rows, const TileDevice& device) {
  TileChoice best{};
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::size(kTileForms); ++i) {
    TileChoice choice{};
    choice.form = kTileForms[i];
    choice.column_tiles = static_cast<int>(sdk::ceil_div(rows, choice.form.columns));
    choice.tiles = static_cast<int>(sdk::ceil_div(shape.units, tile_units(choice.form))) * choice.column_tiles;
    for (choice.splits = 1; choice.splits <= kMostSplits; ++choice.splits) {
      // A cluster has one tile.
      if (choice.splits > 1 && (choice.tiles > device.clusters[choice.splits] || choice.splits > shape.chunks))
        continue;
      const std::int64_t rounds = choice.splits > 1 ? 1 : sdk::ceil_div(choice.tiles, device.multiprocessors);
      const double time = time_of(shape, choice, kChunkTime[i], rounds);
      if (time >= least || !make_ring(shape, choice)) continue;
      least = time;
      best = choice;
      // Equal shares: as many blocks as the rounds of the busiest leave work for.
      best.grid = choice.splits * static_cast<int>(sdk::ceil_div(choice.tiles, rounds));
    }
  }
  return best;
}

}  // namespace facet::linear
