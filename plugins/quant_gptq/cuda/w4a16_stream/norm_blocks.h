// The residual norm of 5 to 8 rows, by blocks of the launch that multiplies them.
#pragma once

namespace facet::linear {

inline constexpr int kNormTeamThreads = 256;  // that take a row
inline constexpr int kNormTeams = 2;          // of a block, when it has more than one row
inline constexpr int kNormBlocks = 4;         // that 8 rows take at least, and
inline constexpr int kMostNormBlocks = 8;     // at most
inline constexpr int kNormSums = 5;           // of a row and warp

// The first blocks of a grid; the inputs that they make lie in the workspace.
struct NormBlocks {
  int count;           // of them, whole clusters; 0: inputs are there when the launch before ends
  unsigned* counters;  // rows that are ready; blocks that have seen all of them
};

// Shared memory of such a block.
constexpr int norm_block_bytes(int inputs) {
  return (2 * inputs + kNormTeams * kNormSums * (kNormTeamThreads / 32)) * 4;
}

}  // namespace facet::linear
