// What a warp of the decode kernel computes with a tile of 16 keys when there are at most 8 packed queries: the
// products are turned around. Keys, then columns of V, are the 16 rows of an mma, and queries its 8 columns, so that
// products and sums are half as many as with 16 rows of queries, most of them empty, and the queries stay in registers.
#pragma once

#include "attention/cuda/decode_shape.cuh"

namespace facet::attention::cuda {

template <typename Shape>
class DecodeFew {
 protected:
  // The two rows of this lane; eight lanes, four apart, share them.
  __device__ int row_of(int half) const { return (lane_ & 3) * 2 + half; }
  __device__ bool speaks_for_row() const { return lane_ < 4; }
  __device__ static float sum_of_row(float part) {
    part += __shfl_xor_sync(0xffffffffu, part, 4);
    part += __shfl_xor_sync(0xffffffffu, part, 8);
    return part + __shfl_xor_sync(0xffffffffu, part, 16);
  }

  // The queries as right operands, once. What memory held past the last row is a column of its own.
  __device__ void take_queries(std::uint32_t queries) {
    const std::uint32_t from = queries + static_cast<std::uint32_t>(lane_ % 8 * Shape::kQueryPitch + lane_ / 8 * 16);
#pragma unroll
    for (int pair = 0; pair < Shape::kDim / 32; ++pair)
      load_matrices(query_[pair], from + static_cast<std::uint32_t>(pair * 64));
  }

  // S^T = K Q^T, in two chains of sums: an mma waits for the one before it in its chain.
  __device__ void multiply_keys(std::uint32_t keys, float (&score)[4]) const {
    constexpr int kBatch = 2;  // of 16 deep
    constexpr int kBatches = Shape::kDim / 16 / kBatch;
    float sums[2][4] = {};
    const std::uint32_t from = Shape::address(keys, lane_ % 16, lane_ / 16);
    std::uint32_t a[2][kBatch][4];
    const auto read = [&](int batch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        load_matrices(a[batch % 2][i], from + static_cast<std::uint32_t>((batch * kBatch + i) * 32));
    };
    read(0);
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      if (batch + 1 < kBatches) read(batch + 1);
      multiply_add(sums[0], a[batch % 2][0], query_[batch][0], query_[batch][1]);
      multiply_add(sums[1], a[batch % 2][1], query_[batch][2], query_[batch][3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) score[i] = sums[0][i] + sums[1][i];
  }

  // score: keys lane / 4 and 8 on, of the lane's two rows each.
  __device__ void mask(const FlashParams& p, int high, int first, float (&score)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + lane_ / 4 + i / 2 * 8;
      const int query = query_position_[i % 2];
      const bool seen = key <= query && key < high && (p.window == 0 || query - key < p.window);
      score[i] = seen ? score[i] * p.scale : -INFINITY;
    }
  }

  // Weights exp2(S - largest) as the right operand of V^T P^T; sums and O are brought to the new largest score.
  __device__ void weigh(float (&score)[4], std::uint32_t (&weights)[2]) {
    float factor[2];
    bool moved = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = fmaxf(score[half], score[2 + half]);
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 4));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 8));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 16));
      most = fmaxf(most, largest_[half]);
      moved = moved | (most > largest_[half]);
      // A row that has seen no key yet keeps -inf; its weights are exp2(-inf - 0).
      const float base = most == -INFINITY ? 0.0f : most;
      factor[half] = exp2_fast(largest_[half] - base);
      largest_[half] = most;
      score[half] = exp2_fast(score[half] - base);
      score[2 + half] = exp2_fast(score[2 + half] - base);
      sum_[half] = fmaf(sum_[half], factor[half], score[half] + score[2 + half]);
    }
    weights[0] = transpose_matrix(pack_bf16(score[0], score[1]));
    weights[1] = transpose_matrix(pack_bf16(score[2], score[3]));
    if (!__any_sync(0xffffffffu, moved)) return;
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_[c][i] *= factor[i % 2];
    }
  }

  // O^T += V^T P^T.
  __device__ void add_values(std::uint32_t values, const std::uint32_t (&weights)[2]) {
    // Fragments are read one batch ahead: instructions issue in order, and a product waits for its operands.
    constexpr int kBatch = 2;  // of 16 columns of V
    constexpr int kBatches = kTiles / kBatch;
    const std::uint32_t from = Shape::address(values, lane_ / 16 * 8 + lane_ % 8, lane_ / 8 % 2);
    std::uint32_t a[2][kBatch][4];
    const auto read = [&](int batch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        load_matrices_transposed(a[batch % 2][i], from + static_cast<std::uint32_t>((batch * kBatch + i) * 32));
    };
    read(0);
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      if (batch + 1 < kBatches) read(batch + 1);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) multiply_add(out_[batch * kBatch + i], a[batch % 2][i], weights[0], weights[1]);
    }
  }

  // All columns of a row of sums.
  __device__ void store_sums(int half, float* row) const {
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
      row[c * 16 + lane_ / 4] = out_[c][half];
      row[c * 16 + 8 + lane_ / 4] = out_[c][2 + half];
    }
  }

  static constexpr int kTiles = Shape::kDim / 16;
  int lane_, member_;  // of the warp, of the team
  int query_position_[2] = {-1, -1};
  std::uint32_t query_[Shape::kDim / 32][4];
  float out_[kTiles][4] = {};
  float largest_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0.0f, 0.0f};
};

}  // namespace facet::attention::cuda
