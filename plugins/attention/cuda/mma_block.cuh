// Prefill with mma.sync: one block walks the keys of one tile of packed queries, for every head size, layout and
// element.
//
// Tiles of keys and values lie in a ring of stages and are copied ahead. A step: S = Q K^T by warps that share out rows
// and keys; largest scores through shared memory; P = exp2(S - m) as bf16 in shared memory; O += P V by warps that
// share out rows and columns.
#pragma once

#include "attention/cuda/work.cuh"

namespace facet::attention::cuda {

// kKeyChannelsT: 0, or channels of a key in the shared form of the cache; the value stands for it in the others.
template <int kDimT, int kRowsT, bool kInt8T, int kKeyChannelsT = 0>
struct MmaShape {
  static constexpr int kDim = kDimT;
  static constexpr int kRows = kRowsT;  // packed queries of a block
  static constexpr bool kInt8 = kInt8T;
  static constexpr bool kShared = kKeyChannelsT > 0;
  static constexpr int kKeyWidth = kShared ? kKeyChannelsT : kDim;
  static_assert(!kShared || (!kInt8 && kKeyWidth % 16 == 0));  // each half of a key is of whole chunks
  static constexpr int kKeys = kDimT == 512 ? 32 : 64;         // of a tile: 64 KB of keys and values at most
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRowGroups = kRows / 16;
  static constexpr int kGroups = kWarps / kRowGroups;                             // warps that share 16 rows
  static constexpr int kScoreGroups = kGroups * 8 > kKeys ? kKeys / 8 : kGroups;  // of them, those with keys
  static constexpr int kWarpKeys = kKeys / kScoreGroups;
  static constexpr int kWarpColumns = kDim / kGroups;
  static constexpr int kColumnTiles = kWarpColumns / 8;
  // An mma waits for the one before it in its chain; few keys a warp need more chains.
  static constexpr int kChains = kWarpKeys == 8 ? 4 : kWarpKeys == 16 ? 2 : 1;
  static_assert(kWarpKeys % 8 == 0 && kWarpColumns % 8 == 0);

  using Rows = TileRows<kKeys, kInt8>;
  static constexpr int kQueryBytes = tile_bytes(kDim, kRows);
  static constexpr int kKeyTileBytes = tile_bytes(kKeyWidth, kKeys);
  static constexpr int kStageBytes = kKeyTileBytes + tile_bytes(kDim, kKeys);
  static constexpr int kWeightBytes = kRows * 128;
  static constexpr int kExchangeBytes = kGroups * kRows * 4;
  static constexpr int kMostStages =
      (204 * 1024 - kQueryBytes) / kStageBytes < kMaxStages ? (204 * 1024 - kQueryBytes) / kStageBytes : kMaxStages;
  static constexpr int shared_bytes(int stages) {
    return 1024 + kQueryBytes + stages * kStageBytes + kWeightBytes + kExchangeBytes +
           (stages + 1) * static_cast<int>(sizeof(Rows));
  }
};

template <typename Shape>
class MmaBlock {
 public:
  __device__ MmaBlock(const FlashParams& params, const Work& work, unsigned char* shared)
      : p_(params), work_(work), stages_(params.stages) {
    const auto address = (shared_address(shared) + 1023u) & ~1023u;
    unsigned char* base = shared + (address - shared_address(shared));
    queries_ = address;
    stage0_ = queries_ + Shape::kQueryBytes;
    const int ring = Shape::kQueryBytes + stages_ * Shape::kStageBytes;
    weights_ = address + static_cast<std::uint32_t>(ring);
    base += ring + Shape::kWeightBytes;
    exchange_ = reinterpret_cast<float*>(base);
    rows_ = reinterpret_cast<typename Shape::Rows*>(base + Shape::kExchangeBytes);
    warp_ = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
    row_base_ = warp_ % Shape::kRowGroups * 16;
    group_ = warp_ / Shape::kRowGroups;
    for (int half = 0; half < 2; ++half) {
      const int row = own_row(half);
      query_position_[half] = row < work.rows ? work.first_position + (work.row0 + row) / params.group : -1;
    }
  }

  __device__ void run() {
    const int tiles = (work_.high - work_.low + Shape::kKeys - 1) / Shape::kKeys;
    for (int tile = 0; tile < stages_ && tile < tiles; ++tile) find(tile, tile);
    __syncthreads();
    load_queries();  // of the group of the first tile
    for (int tile = 0; tile < stages_; ++tile) {
      if (tile < tiles) load(tile, tile);
      commit_copies();
    }
    int stage = 0;
    int slot = 0;  // of the rows of `tile`; the slot before it is free
    for (int tile = 0; tile < tiles; ++tile) {
      step(tile, tiles, stage, slot);
      if (++stage == stages_) stage = 0;
      if (++slot > stages_) slot = 0;
    }
    finish_sums();
  }

  __device__ void write_output() const {
    for (int half = 0; half < 2; ++half) {
      const int row = own_row(half);
      if (row >= work_.rows) continue;
      const float factor = sum_[half] > 0.0f ? 1.0f / sum_[half] : 0.0f;
      __nv_bfloat16* out = output_row<Shape::kDim>(p_, work_, row) + group_ * Shape::kWarpColumns + (lane_ & 3) * 2;
#pragma unroll
      for (int c = 0; c < Shape::kColumnTiles; ++c) {
        *reinterpret_cast<std::uint32_t*>(out + c * 8) =
            pack_bf16(out_[c][half * 2] * factor, out_[c][half * 2 + 1] * factor);
      }
    }
  }

 private:
  __device__ int own_row(int half) const {
    return row_base_ + lane_ / 4 + half * 8;
  }
  __device__ std::uint32_t keys(int stage) const {
    return stage0_ + static_cast<std::uint32_t>(stage * Shape::kStageBytes);
  }
  __device__ std::uint32_t values(int stage) const {
    return keys(stage) + Shape::kKeyTileBytes;
  }
  // What meets chunk `chunk` of a query, for a row of a stage.
  __device__ std::uint32_t key_address(int stage, int row, int chunk) const {
    if constexpr (Shape::kShared) {
      constexpr int kHalf = Shape::kDim / 16, kLive = Shape::kKeyWidth / 16;  // in chunks
      const bool second = chunk >= kHalf;
      const int in_half = second ? chunk - kHalf : chunk;
      if (in_half >= kLive) return chunk_address<Shape::kKeys>(values(stage), row, chunk);
      return chunk_address<Shape::kKeys>(keys(stage), row, second ? in_half + kLive : in_half);
    } else {
      return chunk_address<Shape::kKeys>(keys(stage), row, chunk);
    }
  }

  __device__ void load_queries() const {
    constexpr int kChunks = Shape::kDim / 8;
    for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * kChunks; i += Shape::kThreads) {
      const int row = i / kChunks;
      const int chunk = i % kChunks;
      const bool valid = row < work_.rows;
      const int packed = work_.row0 + (valid ? row : 0);
      const std::int64_t token = work_.token_begin + packed / p_.group;
      const int head = work_.head * p_.group + packed % p_.group;
      copy16_async(
          chunk_address<Shape::kRows>(queries_, row, chunk),
          static_cast<const __nv_bfloat16*>(p_.queries) + token * p_.query_stride + head * Shape::kDim + chunk * 8,
          valid);
    }
  }
  __device__ void find(int tile, int slot) {
    find_rows<Shape::kKeys, Shape::kInt8>(rows_[slot], p_.kv, work_.sequence, work_.head, work_.only_block,
                                          work_.low + tile * Shape::kKeys, work_.low, work_.high);
  }
  __device__ void load(int stage, int slot) const {
    load_tile<Shape::kKeyWidth, Shape::kKeys, Shape::kThreads, Shape::kInt8>(keys(stage), p_.kv.keys, rows_[slot]);
    load_tile<Shape::kDim, Shape::kKeys, Shape::kThreads, Shape::kInt8>(values(stage), p_.kv.values, rows_[slot]);
  }
  // Tiles are committed in order, one group each; all but the newest stages_ - 1 must be there.
  __device__ void wait_for_tile() const {
    if (stages_ == 1) {
      wait_copies<0>();
    } else if (stages_ == 2) {
      wait_copies<1>();
    } else if (stages_ == 3) {
      wait_copies<2>();
    } else {
      wait_copies<3>();
    }
  }

  __device__ void step(int tile, int tiles, int stage, int slot) {
    wait_for_tile();
    __syncthreads();  // keys and values are there
    const bool more = tile + stages_ < tiles;
    const int next_slot = slot == 0 ? stages_ : slot - 1;
    if (more) find(tile + stages_, next_slot);
    if (group_ < Shape::kScoreGroups) {
      score(stage);
      mask(tile, rows_[slot]);
      float largest[2];
      row_largest(largest);
      if ((lane_ & 3) == 0) {
        for (int half = 0; half < 2; ++half) exchange_[group_ * Shape::kRows + own_row(half)] = largest[half];
      }
    }
    __syncthreads();  // the largest scores are there
    weigh(rows_[slot]);
    __syncthreads();  // P is there
    add_values(values(stage));
    __syncthreads();  // the stage is done with
    if (more) load(stage, next_slot);
    commit_copies();
  }

  // S = Q K^T for 16 rows and kWarpKeys keys.
  __device__ void score(int stage) {
    constexpr int kTiles = Shape::kWarpKeys / 8;
    float sums[Shape::kChains][kTiles][4] = {};
    const int key0 = group_ * Shape::kWarpKeys;
#pragma unroll 4
    for (int k = 0; k < Shape::kDim / 32; ++k) {
      std::uint32_t a[2][4];
      for (int i = 0; i < 2; ++i) {
        load_matrices(a[i], chunk_address<Shape::kRows>(queries_, row_base_ + lane_ % 16, k * 4 + i * 2 + lane_ / 16));
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        std::uint32_t b[4];
        load_matrices(b, key_address(stage, key0 + n * 8 + lane_ % 8, k * 4 + lane_ / 8));
        constexpr int kHalf = Shape::kChains == 4 ? 2 : 1;
        multiply_add(sums[Shape::kChains > 1 ? k % kHalf : 0][n], a[0], b[0], b[1]);
        multiply_add(sums[Shape::kChains > 1 ? kHalf + k % kHalf : 0][n], a[1], b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = sums[0][n][i];
        for (int chain = 1; chain < Shape::kChains; ++chain) sum += sums[chain][n][i];
        score_[n][i] = sum;
      }
    }
  }

  __device__ void mask(int tile, const typename Shape::Rows& rows) {
    const int key0 = work_.low + tile * Shape::kKeys + group_ * Shape::kWarpKeys + (lane_ & 3) * 2;
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key0 + n * 8 + i % 2;
        const int query = query_position_[i / 2];
        // Keys before `low` belong to other blocks or lie outside the window; the tiles begin there.
        const bool seen = key <= query && key < work_.high && (p_.window == 0 || query - key < p_.window);
        float scale = p_.scale;
        if constexpr (Shape::kInt8)
          scale *= rows.key_scale[group_ * Shape::kWarpKeys + n * 8 + (lane_ & 3) * 2 + i % 2];
        score_[n][i] = seen ? score_[n][i] * scale : -INFINITY;
      }
    }
  }

  __device__ void row_largest(float (&largest)[2]) const {
    for (int half = 0; half < 2; ++half) {
      float most = -INFINITY;
#pragma unroll
      for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
        most = fmaxf(most, fmaxf(score_[n][half * 2], score_[n][half * 2 + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      largest[half] = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    }
  }

  // P = exp2(S - largest) into shared memory; sums and O are brought to the new largest score.
  __device__ void weigh(const typename Shape::Rows& rows) {
    for (int half = 0; half < 2; ++half) {
      float most = largest_[half];
#pragma unroll
      for (int g = 0; g < Shape::kScoreGroups; ++g) most = fmaxf(most, exchange_[g * Shape::kRows + own_row(half)]);
      // A row that has seen no key yet keeps -inf; its weights are exp2(-inf - 0).
      const float base = most == -INFINITY ? 0.0f : most;
      const float factor = exp2_fast(largest_[half] - base);
      largest_[half] = most;
      sum_[half] *= factor;
      if (group_ < Shape::kScoreGroups) write_weights(half, base, rows);
#pragma unroll
      for (int c = 0; c < Shape::kColumnTiles; ++c) {
        out_[c][half * 2] *= factor;
        out_[c][half * 2 + 1] *= factor;
      }
    }
  }
  __device__ void write_weights(int half, float base, const typename Shape::Rows& rows) {
    const int row = own_row(half);
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
      float w0 = exp2_fast(score_[n][half * 2] - base);
      float w1 = exp2_fast(score_[n][half * 2 + 1] - base);
      sum_[half] += w0 + w1;
      const int key = group_ * Shape::kWarpKeys + n * 8 + (lane_ & 3) * 2;
      if constexpr (Shape::kInt8) {
        w0 *= rows.value_scale[key];
        w1 *= rows.value_scale[key + 1];
      }
      store4(chunk_address<Shape::kRows>(weights_, row, key / 8) + static_cast<std::uint32_t>(key % 8) * 2,
             pack_bf16(w0, w1));
    }
  }

  __device__ void add_values(std::uint32_t values) {
    const int chunk0 = group_ * (Shape::kWarpColumns / 8);
#pragma unroll
    for (int k = 0; k < Shape::kKeys / 16; ++k) {
      std::uint32_t a[4];
      load_matrices(a, chunk_address<Shape::kRows>(weights_, row_base_ + lane_ % 16, k * 2 + lane_ / 16));
#pragma unroll
      for (int c = 0; c + 1 < Shape::kColumnTiles; c += 2) {
        std::uint32_t b[4];
        load_matrices_transposed(b, chunk_address<Shape::kKeys>(values, k * 16 + lane_ % 16, chunk0 + c + lane_ / 16));
        multiply_add(out_[c], a, b[0], b[1]);
        multiply_add(out_[c + 1], a, b[2], b[3]);
      }
      if constexpr (Shape::kColumnTiles % 2 == 1) {
        constexpr int kLast = Shape::kColumnTiles - 1;
        std::uint32_t b0, b1;
        load_two_matrices_transposed(b0, b1, chunk_address<Shape::kKeys>(values, k * 16 + lane_ % 16, chunk0 + kLast));
        multiply_add(out_[kLast], a, b0, b1);
      }
    }
  }

  // Sums of weights over the warps of a row group, in their order.
  __device__ void finish_sums() {
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if ((lane_ & 3) == 0) exchange_[group_ * Shape::kRows + own_row(half)] = sum;
    }
    __syncthreads();
    for (int half = 0; half < 2; ++half) {
      sum_[half] = 0.0f;
      for (int g = 0; g < Shape::kScoreGroups; ++g) sum_[half] += exchange_[g * Shape::kRows + own_row(half)];
    }
  }

  const FlashParams& p_;
  const Work work_;
  const int stages_;
  std::uint32_t queries_, stage0_, weights_;
  float* exchange_;
  typename Shape::Rows* rows_;
  int warp_, lane_, row_base_, group_;
  int query_position_[2];
  float score_[Shape::kWarpKeys / 8][4];
  float out_[Shape::kColumnTiles][4] = {};
  float largest_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0.0f, 0.0f};
};

}  // namespace facet::attention::cuda
