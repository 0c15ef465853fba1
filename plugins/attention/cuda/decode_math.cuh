// What a warp of the decode kernel computes with a tile of 16 keys: scores, weights, sums. Scores become weights in
// registers: the result of Q K^T has the layout that P V reads.
#pragma once

#include "attention/cuda/codes.cuh"
#include "attention/cuda/decode_shape.cuh"

namespace facet::attention::cuda {

template <typename Shape>
class DecodeMath {
 protected:
  // The two rows of this lane; neighbours share them.
  __device__ int row_of(int half) const { return lane_ / 4 + half * 8; }
  __device__ bool speaks_for_row() const { return (lane_ & 3) == 0; }
  __device__ static float sum_of_row(float part) {
    part += __shfl_xor_sync(0xffffffffu, part, 1);
    return part + __shfl_xor_sync(0xffffffffu, part, 2);
  }

  // S = Q K^T, two chains of sums for each 8 keys: an mma waits for the one before it in its chain.
  __device__ void multiply_keys(std::uint32_t queries, std::uint32_t keys, float (&score)[2][4]) const {
    constexpr int kBatch = 2;  // of 16 deep
    constexpr int kBatches = Shape::kDim / 16 / kBatch;
    float sums[2][2][4] = {};
    const std::uint32_t from_a =
        queries + static_cast<std::uint32_t>(lane_ % 16 * Shape::kQueryPitch + lane_ / 16 * 16);
    const std::uint32_t from_b = Shape::address(keys, lane_ / 16 * 8 + lane_ % 8, lane_ / 8 % 2);
    std::uint32_t a[2][kBatch][4], b[2][kBatch][4];
    const auto read = [&](int batch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int depth = batch * kBatch + i;
        load_matrices(a[batch % 2][i], from_a + static_cast<std::uint32_t>(depth * 32));
        load_matrices(b[batch % 2][i], from_b + static_cast<std::uint32_t>(Shape::key_offset(depth)));
      }
    };
    read(0);
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      if (batch + 1 < kBatches) read(batch + 1);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        multiply_add(sums[i][0], a[batch % 2][i], b[batch % 2][i][0], b[batch % 2][i][1]);
        multiply_add(sums[i][1], a[batch % 2][i], b[batch % 2][i][2], b[batch % 2][i][3]);
      }
    }
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) score[n][i] = sums[0][n][i] + sums[1][n][i];
    }
  }

  // The same for codes, over this warp's share of the depth: a word of four codes is both registers of a right operand
  // (codes.cuh), so one load serves two steps of 16 channels.
  __device__ void multiply_codes(std::uint32_t queries, std::uint32_t keys, float (&score)[2][4]) const {
    constexpr int kDepth = Shape::kSharesDepth ? Shape::kDim / 2 : Shape::kDim;
    constexpr int kBatches = kDepth / 32;
    float sums[2][2][4] = {};
    const int first = Shape::kSharesDepth ? member_ * kDepth : 0;
    const std::uint32_t from_a =
        queries + static_cast<std::uint32_t>(lane_ % 16 * Shape::kQueryPitch + lane_ / 16 * 16 + first * 2);
    const std::uint32_t from_b =
        Shape::address(keys, lane_ / 16 * 8 + lane_ % 8, lane_ / 8 % 2) + static_cast<std::uint32_t>(first);
    std::uint32_t a[2][2][4], b[2][4];
    const auto read = [&](int batch) {
      load_matrices(b[batch % 2], from_b + static_cast<std::uint32_t>(batch * 32));
      for (int i = 0; i < 2; ++i)
        load_matrices(a[batch % 2][i], from_a + static_cast<std::uint32_t>((batch * 2 + i) * 32));
    };
    read(0);
    // As few copies of the code as the two buffers allow: it is cold in every launch, and widening makes it long.
#pragma unroll(kBatches % 2 == 0 ? 2 : kBatches)
    for (int batch = 0; batch < kBatches; ++batch) {
      if (batch + 1 < kBatches) read(batch + 1);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const std::uint32_t codes = b[batch % 2][n * 2 + i];
          multiply_add(sums[i][n], a[batch % 2][i], widen_even(codes), widen_odd(codes));
        }
      }
    }
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) score[n][i] = sums[0][n][i] + sums[1][n][i];
    }
  }

  __device__ void mask(const FlashParams& p, int high, int first, const float* key_scales, float (&score)[2][4]) const {
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int in_tile = n * 8 + (lane_ & 3) * 2 + i % 2;
        const int key = first + in_tile;
        const int query = query_position_[i / 2];
        // Keys before `low` belong to other blocks or lie outside the window; the tiles begin there.
        const bool seen = key <= query && key < high && (p.window == 0 || query - key < p.window);
        const float scale = Shape::kInt8 ? p.scale * key_scales[in_tile] : p.scale;
        score[n][i] = seen ? score[n][i] * scale : -INFINITY;
      }
    }
  }

  // In place of mask() where every query sees every key of the tile.
  __device__ void scale(const FlashParams& p, const float* key_scales, float (&score)[2][4]) const {
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) {
        const float scaled = score[n][i] * (p.scale * key_scales[n * 8 + (lane_ & 3) * 2 + i % 2]);
        score[n][i] = query_position_[i / 2] >= 0 ? scaled : -INFINITY;
      }
    }
  }

  // Weights exp2(S - largest) as the left operand of P V; sums and O are brought to the new largest score.
  __device__ void weigh(const float* value_scales, float (&score)[2][4], std::uint32_t (&weights)[4]) {
    float factor[2];
    bool moved = false;
    for (int half = 0; half < 2; ++half) {
      const int at = half * 2;
      float most = fmaxf(fmaxf(score[0][at], score[0][at + 1]), fmaxf(score[1][at], score[1][at + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      most = fmaxf(most, largest_[half]);
      if constexpr (Shape::kInt8) {
        // Nothing to bring before the first key, and code that is not run need not be fetched. No branch: it would part
        // the halves' work.
        moved = moved | ((most > largest_[half]) & (largest_[half] != -INFINITY));
      } else {
        moved = moved || most > largest_[half];
      }
      // A row that has seen no key yet keeps -inf; its weights are exp2(-inf - 0).
      const float base = most == -INFINITY ? 0.0f : most;
      factor[half] = exp2_fast(largest_[half] - base);
      largest_[half] = most;
      float sum = 0.0f;
      for (int n = 0; n < 2; ++n) {
        float w0 = exp2_fast(score[n][at] - base);
        float w1 = exp2_fast(score[n][at + 1] - base);
        sum += w0 + w1;
        if constexpr (Shape::kInt8) {
          w0 *= value_scales[n * 8 + (lane_ & 3) * 2];
          w1 *= value_scales[n * 8 + (lane_ & 3) * 2 + 1];
        }
        weights[n * 2 + half] = pack_bf16(w0, w1);
      }
      sum_[half] = fmaf(sum_[half], factor[half], sum);
    }
    if (!__any_sync(0xffffffffu, moved)) return;
#pragma unroll
    for (int c = 0; c < Shape::kColumnTiles; ++c) {
      for (int i = 0; i < 4; ++i) out_[c][i] *= factor[i / 2];
    }
  }

  // O += P V for the columns of this warp.
  __device__ void add_values(std::uint32_t values, const std::uint32_t (&weights)[4]) {
    // Fragments are read one batch ahead: instructions issue in order, and a product waits for its operands.
    constexpr int kBatch = 2;  // of 16 columns
    const std::uint32_t from = Shape::address(values, lane_ % 16, member_ * (Shape::kColumns / 8) + lane_ / 16);
    std::uint32_t b[2][kBatch][4];
    const auto read = [&](int batch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        load_matrices_transposed(b[batch % 2][i], from + static_cast<std::uint32_t>((batch * kBatch + i) * 32));
      }
    };
    read(0);
#pragma unroll
    for (int batch = 0; batch < Shape::kColumnTiles / 2 / kBatch; ++batch) {
      if (batch + 1 < Shape::kColumnTiles / 2 / kBatch) read(batch + 1);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int c = (batch * kBatch + i) * 2;
        multiply_add(out_[c], weights, b[batch % 2][i][0], b[batch % 2][i][1]);
        multiply_add(out_[c + 1], weights, b[batch % 2][i][2], b[batch % 2][i][3]);
      }
    }
  }

  // The same for codes. A word has two keys of two columns: tile 2 g has the even columns of the 16 from 16 g on, tile
  // 2 g + 1 the odd ones.
  __device__ void add_codes(std::uint32_t values, const std::uint32_t (&weights)[4]) {
    constexpr int kBatches = Shape::kColumns / 32;
    const std::uint32_t from =
        Shape::address(values, lane_ % 16, lane_ / 16) + static_cast<std::uint32_t>(member_ * Shape::kColumns);
    std::uint32_t b[2][4];
    load_matrices_transposed(b[0], from);
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      if (batch + 1 < kBatches)
        load_matrices_transposed(b[(batch + 1) % 2], from + static_cast<std::uint32_t>((batch + 1) * 32));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = batch * 4 + i * 2;
        const std::uint32_t low = b[batch % 2][i * 2], high = b[batch % 2][i * 2 + 1];
        multiply_add(out_[c], weights, widen_even(low), widen_even(high));
        multiply_add(out_[c + 1], weights, widen_odd(low), widen_odd(high));
      }
    }
  }

  // This warp's columns of a row of sums, of which this lane has 2 in 8 or, of codes, 4 in 16.
  __device__ void store_sums(int half, float* row) const {
    float* to = row + member_ * Shape::kColumns + (lane_ & 3) * (Shape::kInt8 ? 4 : 2);
#pragma unroll
    for (int c = 0; c < Shape::kColumnTiles; c += Shape::kInt8 ? 2 : 1) {
      const float a = out_[c][half * 2], b = out_[c][half * 2 + 1];
      if constexpr (Shape::kInt8) {
        *reinterpret_cast<float4*>(to + c * 8) = make_float4(a, out_[c + 1][half * 2], b, out_[c + 1][half * 2 + 1]);
      } else {
        *reinterpret_cast<float2*>(to + c * 8) = make_float2(a, b);
      }
    }
  }

  int lane_, member_;  // of the warp, of the team
  int query_position_[2] = {-1, -1};
  float out_[Shape::kColumnTiles][4] = {};
  float largest_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0.0f, 0.0f};
};

}  // namespace facet::attention::cuda
