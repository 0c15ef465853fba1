// Sizes of the decode kernel: what a block, its teams and their stages hold.
#pragma once

#include "attention/cuda/work.cuh"

namespace facet::attention::cuda {

// kPreparesT: the block makes its queries and, with the newest key, its row. kKeyChannelsT: 0, or those of a key in the
// shared form of the cache, where one row of a tile holds a value and behind it the key. kRowsT: packed queries at
// most; with kFewRows the block is that of decode_few.cuh. kBesideT: with fewer registers, see there.
template <int kDimT, bool kInt8T, bool kPreparesT, int kKeyChannelsT = 0, int kRowsT = kDecodeRows,
          bool kBesideT = false>
struct DecodeShape {
  static constexpr int kDim = kDimT;
  static constexpr bool kInt8 = kInt8T;
  static constexpr bool kPrepares = kPreparesT;
  static constexpr int kKeyChannels = kKeyChannelsT;
  static constexpr bool kShared = kKeyChannels > 0;
  // A step of 16 channels meets either keys or values.
  static_assert(!kShared || (!kInt8 && kKeyChannels % 32 == 0 && kDim % 32 == 0 && kKeyChannels < kDim));
  static constexpr int kRows = kRowsT;
  static constexpr bool kFew = kRows == kFewRows;
  static_assert(kFew ? serves_few_rows(kDim, kKeyChannels, kInt8) : kRows == kDecodeRows);
  static constexpr bool kBeside = kBesideT;
  static_assert(kFew || !kBeside);
  static constexpr int kKeys = 16;  // of a tile
  static constexpr int kWarps = kInt8 && kDim > 256 ? 8 : 4;
  static constexpr int kThreads = kWarps * 32;
  // Few rows: as many warps more fetch tiles.
  static constexpr int kBlockThreads = kFew ? 2 * kThreads : kThreads;
  // 256 columns of 16 rows are 128 registers; more columns are shared out.
  static constexpr int kTeamWarps = kDim > 256 ? kDim / 256 : 1;
  static constexpr int kTeams = kWarps / kTeamWarps;
  static constexpr int kColumns = kDim / kTeamWarps;  // of a warp
  static constexpr int kColumnTiles = kColumns / 8;
  // int8 rows stay codes in shared memory and are widened in registers.
  static constexpr int kElementBytes = kInt8 ? 1 : 2;
  static constexpr int kChunks = (kDim + kKeyChannels) * kElementBytes / 16;

  // 16 bytes between rows part the banks of the 8 rows that ldmatrix reads.
  static constexpr int kRowBytes = kChunks * 16;
  static constexpr int kPitch = kRowBytes + 16;
  static constexpr int kTileBytes = kKeys * kPitch;
  static constexpr int kQueryRowBytes = kDim * 2;
  static constexpr int kQueryPitch = kQueryRowBytes + 16;
  static constexpr int kQueryBytes = kRows * kQueryPitch;
  // One copy a row saves instructions; rows below 1 KB pass faster as 16 bytes a thread (measured: 3.84 against 3.42
  // TB/s).
  static constexpr bool kWholeRows = !kInt8 && kRowBytes >= 1024;
  static constexpr int kTeamBytes = (kShared ? 1 : 2) * kTileBytes;  // keys and values of a team's stage
  static constexpr int kValueOffset = kShared ? 0 : kTileBytes;      // of values from there
  // Few rows: a stage is a place for keys or for values, not for both.
  static constexpr int kStageBytes = (kFew ? kTileBytes : kTeamBytes) * kTeams;
  static constexpr int kStageKeys = kKeys * kTeams / (kFew ? 2 : 1);
  // A chunk of 16 bytes of a row in a tile of keys or values.
  __device__ static std::uint32_t address(std::uint32_t tile, int row, int chunk) {
    return tile + static_cast<std::uint32_t>(row * kPitch + chunk * 16);
  }
  // Bytes from there to what meets channels [16 step, 16 step + 16) of the first query.
  __device__ static constexpr int key_offset(int step) {
    const int channel = step * 16, half = channel < kDim / 2 ? 0 : 1, in_half = channel - half * (kDim / 2);
    if (!kShared || in_half >= kKeyChannels / 2) return channel * 2;
    return (kDim + half * (kKeyChannels / 2) + in_half) * 2;
  }
  static constexpr int kScaleBytes = kInt8 ? kTeams * 2 * kKeys * 4 : 0;
  // Widening keys costs more than the product: two warps of a team take half the depth of Q K^T each and exchange what
  // they have of the scores.
  static constexpr bool kSharesDepth = kInt8 && kTeamWarps == 2;
  static constexpr int kExchangeBytes = kSharesDepth ? kWarps * 32 * 8 * 4 : 0;
  // Sums of the teams, then of the block, over the ring; 8 floats of padding part the banks.
  static constexpr int kSumStride = kDim + 8;
  static constexpr int kSumBytes = kTeams * kRows * kSumStride * 4;
  // Largest scores and sums of weights of the teams.
  static constexpr int kStatBytes = kTeams * kRows * 8;
  static constexpr int kBarrierBytes = (kFew ? 2 + 2 * kTeams * kMaxStages : 1 + kTeams * kMaxStages) * 8;
  // What the blocks of a cluster send each other: a slice of the sums, and the scores and sums of weights of every row.
  static constexpr int kInboxStatBytes = kMaxCluster * kRows * 8;
  static constexpr int kInboxRowBytes = kDim * 4;
  static constexpr int ring_bytes(int stages) {
    return stages * kStageBytes > kSumBytes ? stages * kStageBytes : kSumBytes;
  }
  static constexpr int shared_bytes(int stages, bool clustered, int rows = kRows) {
    return kQueryBytes + ring_bytes(stages) + stages * kScaleBytes + kExchangeBytes + kStatBytes + kBarrierBytes +
           kInboxStatBytes + (clustered ? rows * kInboxRowBytes : 0);
  }
  // Int8 and few rows: two blocks a processor where they fit, so that one computes while the other waits. Else room
  // beside the block, so that the product that follows finds its place before attention ends: with two stages of 256
  // columns as fast as with three. Blocks of 512 columns leave no room.
  static constexpr int kMostBytes = (kDim > 256 ? 226 : kInt8 || kFew ? 113 : 160) * 1024;
  static constexpr int most_stages(bool clustered) {
    int stages = kMaxStages;
    while (shared_bytes(stages, clustered) > kMostBytes) --stages;
    return stages;
  }
};

// Beside it, one token and two heads a KV head: 80 KiB of a multiprocessor's 228, less what the system keeps.
static_assert(DecodeShape<256, false, false>::shared_bytes(DecodeShape<256, false, false>::most_stages(true), true,
                                                           2) <= (228 - 80 - 1) * 1024);

template <typename Shape>
inline constexpr int kMostStages = Shape::most_stages(false);

// A barrier of the warps that multiply.
template <typename Shape>
__device__ __forceinline__ void block_sync() {
  if constexpr (Shape::kBlockThreads == Shape::kThreads) {
    __syncthreads();
  } else {
    named_sync(1, Shape::kThreads);
  }
}

__device__ __forceinline__ int log2_of(std::int32_t power) {
  return __ffs(power) - 1;
}
// Token of a packed row below kDecodeRows, without a division.
__device__ __forceinline__ int row_token(const FlashParams& p, int row) {
  return row * p.group_inverse >> 16;
}

}  // namespace facet::attention::cuda
