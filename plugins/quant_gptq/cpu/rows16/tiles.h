// Cutting a range of blocks and rows into register tiles. For kernels only: all names are in an anonymous namespace, so
// every file compiles its own copy with its own instruction set and exports none.
#pragma once

#include <cstdint>

namespace facet::linear {
namespace {

// Rows of x in the largest tile. With two blocks, 12 sums of a segment, 12 running sums and the decoded weights fill
// the 32 vector registers of AVX-512.
constexpr int kTileRows = 6;

// Tile<Blocks, Rows>::run(task, block, row) for the remaining rows: at most kTileRows of them.
template <template <int, int> typename Tile, int Blocks, typename Task>
void last_rows(const Task& task, std::int64_t block, std::int64_t row, std::int64_t count) {
  switch (count) {
    case 1:
      return Tile<Blocks, 1>::run(task, block, row);
    case 2:
      return Tile<Blocks, 2>::run(task, block, row);
    case 3:
      return Tile<Blocks, 3>::run(task, block, row);
    case 4:
      return Tile<Blocks, 4>::run(task, block, row);
    case 5:
      return Tile<Blocks, 5>::run(task, block, row);
    default:
      return Tile<Blocks, 6>::run(task, block, row);
  }
}

template <template <int, int> typename Tile, int Blocks, typename Task>
void all_rows(const Task& task, std::int64_t block) {
  std::int64_t row = 0;
  for (; task.rows - row > kTileRows; row += kTileRows) Tile<Blocks, kTileRows>::run(task, block, row);
  last_rows<Tile, Blocks>(task, block, row, task.rows - row);
}

// Few rows leave registers for four blocks, which hide the latency of the sums; else two.
template <template <int, int> typename Tile, typename Task>
void for_tiles(const Task& task) {
  std::int64_t block = task.block_begin;
  if (task.rows <= 3) {
    for (; block + 4 <= task.block_end; block += 4) {
      if (task.rows == 1) Tile<4, 1>::run(task, block, 0);
      if (task.rows == 2) Tile<4, 2>::run(task, block, 0);
      if (task.rows == 3) Tile<4, 3>::run(task, block, 0);
    }
  }
  for (; block + 2 <= task.block_end; block += 2) all_rows<Tile, 2>(task, block);
  if (block < task.block_end) all_rows<Tile, 1>(task, block);
}

}  // namespace
}  // namespace facet::linear
