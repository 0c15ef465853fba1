// How a product of 5 to 8 rows is cut: a model of its time, in microseconds, from measurements on an H200.
#include <algorithm>
#include <limits>

#include "facet/sdk/numeric.h"
#include "quant_gptq/cuda/w4a16_stream/wide.h"

namespace facet::linear {

namespace {

constexpr double kChunk[] = {0.24, 0.12};  // a chunk of 128 rows of W at the memory's rate, of 64
constexpr double kTile = 0.3;              // the end of a tile
// Of 1, 2 and 4 blocks. Alone, two are faster than four, 4.8 us beside 6.1 for o of the 12B. But clusters of four leave
// multiprocessors free, where other launches find a place: in a whole step of 8 sequences 3.89 ms with four for o and
// down, 4.06 with two.
constexpr double kCluster[] = {0.0, 0.9, 0.5};
static_assert(kNormBlocks % kWideMostSplits == 0 && kMostNormBlocks % kWideMostSplits == 0);  // whole clusters

struct Cut {
  double time;
  int grid;
};

Cut cut(WideArgs& args, const WideDevice& device) {
  const int multiprocessors = device.multiprocessors - args.norm.count;
  double least = std::numeric_limits<double>::infinity();
  int grid = 0;
  for (const int k_shift : {0, 1}) {
    const int units = 4 >> k_shift;
    const auto tiles = static_cast<int>(sdk::ceil_div(args.shape.units, units));
    for (int split_shift = 0; 1 << split_shift <= units; ++split_shift) {
      const int splits = 1 << split_shift;
      const auto chunks = static_cast<int>(sdk::ceil_div(args.shape.chunks, splits));
      const int places = splits <= 2 ? multiprocessors / splits : device.clusters[splits] - args.norm.count / splits;
      // A cluster has one tile, and each of its blocks some of the inputs.
      if (places < 1 || (splits > 1 && (tiles > places || (splits - 1) * chunks >= args.shape.chunks))) continue;
      const std::int64_t rounds = sdk::ceil_div(tiles, places);
      const double time = static_cast<double>(rounds) * (kTile + chunks * kChunk[k_shift]) + kCluster[split_shift];
      if (time >= least) continue;
      least = time;
      args.k_shift = k_shift;
      args.split_shift = split_shift;
      args.block_chunks = chunks;
      args.tiles = tiles;
      args.sum_buffers = splits == 1 ? 2 : 1;
      args.clusters = static_cast<int>(sdk::ceil_div(tiles, rounds));
      // With clusters of up to two every multiprocessor gets a block, be it without a tile: see next_size().
      grid = args.norm.count + splits * (splits <= 2 ? places : args.clusters);
    }
  }
  return {least, grid};
}

}  // namespace

int wide_cut(WideArgs& args, const WideDevice& device) {
  if (args.norm.count == 0) return cut(args, device).grid;
  // A row for each block of the norm where multiprocessors would be left over, else two: gate and up of 8 rows begin
  // 1.3 us earlier so, a step of 8 sequences took 3.475 ms instead of 3.535.
  WideArgs more = args;
  more.norm.count = kMostNormBlocks;
  const Cut with_more = cut(more, device);
  const Cut with_fewer = cut(args, device);
  if (with_more.time > with_fewer.time) return with_fewer.grid;
  args = more;
  return with_more.grid;
}

int wide_ring(WideArgs& args, int shared) {
  const int fixed = kWideAlignment + kWideBarrierBytes + args.sum_buffers * kWideSumBytes;
  const int stage = wide_stage_bytes(args);
  args.stages = std::min((shared - fixed) / stage, kWideMaxStages);
  return args.stages < kWideMinStages ? 0 : fixed + args.stages * stage;
}

}  // namespace facet::linear
