// Prefill with wgmma for bf16 caches: one thread has the tensor copy engine fetch keys and values ahead, two warpgroups
// multiply.
//
// Head sizes up to 256: each of the two owns 64 of the block's 128 packed queries and all columns of O (128 registers
// at 256). Head size 512: O of 64 queries alone is 256 registers, so both own the same 64 queries and half of the
// columns; each multiplies half of the depth of Q K^T, they add their halves through shared memory, and both have all
// weights. In the shared form the channels that turn are the first panel of either half of the depth.
#pragma once

#include "attention/cuda/prefill_tiles.cuh"
#include "attention/cuda/wgmma.cuh"

namespace facet::attention::cuda {

// One of the two multiplying warpgroups.
template <typename Shape>
class WgmmaConsumer {
 public:
  __device__ WgmmaConsumer(const FlashParams& params, const Work& work, const WgmmaMemory<Shape>& memory,
                           const TileWalk& walk, int group)
      : p_(params), work_(work), memory_(memory), walk_(walk), group_(group) {
    thread_ = static_cast<int>(threadIdx.x) % 128;
    lane_ = thread_ % 32;
    for (int half = 0; half < 2; ++half) {
      const int row = own_row(half);
      position_[half] = row < work.rows ? work.first_position + (work.row0 + row) / params.group : -1;
    }
    // Tiles that some row of this warpgroup sees in part only are masked.
    const int row0 = Shape::kShared ? 0 : group * 64;
    first_query_ = work.first_position + (work.row0 + row0) / params.group;
    last_query_ = work.first_position + (work.row0 + min(row0 + 63, work.rows - 1)) / params.group;
  }

  __device__ void run() {
    const int tiles = walk_.tiles();
    load_queries();
    if constexpr (Shape::kOneTile) {
      for (int tile = 0; tile < tiles; ++tile) {
        const int stage = tile % Shape::kStages;
        const auto parity = static_cast<std::uint32_t>(tile / Shape::kStages & 1);
        start_scores(stage, parity);
        wgmma_wait<0>();
        exchange_scores();
        weigh(tile);
        scale_sums();
        pack_weights();
        start_values(tile, stage, parity);
        wgmma_wait<0>();
        release(memory_.free_values(stage));
      }
    } else if constexpr (Shape::kStages > 1) {
      run_overlapped(tiles);
    } else {
      for (int tile = 0; tile < tiles; ++tile) {
        start_scores(0, static_cast<std::uint32_t>(tile & 1));
        wgmma_wait<0>();
        release(memory_.free_keys(0));
        if constexpr (Shape::kShared) exchange_scores();
        weigh(tile);
        scale_sums();
        pack_weights();
        start_values(tile, 0, static_cast<std::uint32_t>(tile & 1));
        wgmma_wait<0>();
        release(memory_.free_values(0));
      }
    }
  }

  __device__ void write_output() {
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const int row = own_row(half);
      if (row >= work_.rows) continue;
      const float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
      __nv_bfloat16* out =
          output_row<Shape::kDim>(p_, work_, row) + (Shape::kShared ? group_ * Shape::kColumns : 0) + (lane_ & 3) * 2;
#pragma unroll
      for (int c = 0; c < Shape::kColumns / 8; ++c) {
        *reinterpret_cast<std::uint32_t*>(out + c * 8) =
            pack_bf16(out_[c * 4 + half * 2] * factor, out_[c * 4 + half * 2 + 1] * factor);
      }
    }
  }

 private:
  __device__ int own_row(int half) const {
    return (Shape::kShared ? 0 : group_ * 64) + thread_ / 32 * 16 + lane_ / 4 + half * 8;
  }
  __device__ void release(std::uint32_t barrier) const {
    if (lane_ == 0) barrier_arrive(barrier);
  }
  __device__ std::uint32_t queries() const {
    return memory_.queries + static_cast<std::uint32_t>(group_ * Shape::kOwnPanels * Shape::kQueryPanelBytes);
  }
  // Offset of this warpgroup's half of the panels of a tile.
  __device__ std::uint32_t own_panels() const {
    return Shape::kShared ? static_cast<std::uint32_t>(group_ * Shape::kOwnPanels * Shape::kPanelBytes) : 0u;
  }

  __device__ void load_queries() const {
    constexpr int kChunks = Shape::kColumns / 8;
    const int column0 = Shape::kShared ? group_ * Shape::kColumns : 0;
    const int row0 = Shape::kShared ? 0 : group_ * 64;
#pragma unroll 4
    for (int i = thread_; i < 64 * kChunks; i += 128) {
      const int row = i / kChunks;
      const int chunk = i % kChunks;
      const bool valid = row0 + row < work_.rows;
      const int packed = work_.row0 + (valid ? row0 + row : 0);
      const std::int64_t token = work_.token_begin + packed / p_.group;
      const int head = work_.head * p_.group + packed % p_.group;
      copy16_async(chunk_address<64>(queries(), row, chunk),
                   static_cast<const __nv_bfloat16*>(p_.queries) + token * p_.query_stride + head * Shape::kDim +
                       column0 + chunk * 8,
                   valid);
    }
    commit_copies();
    wait_copies<0>();
    async_fence_shared();
    named_sync(1 + group_, 128);
  }

  // S = Q K^T under way.
  __device__ void start_scores(int stage, std::uint32_t parity) {
    barrier_wait(Shape::kOneTile ? memory_.full_values(stage) : memory_.full_keys(stage), parity);
    const std::uint64_t a = wgmma_matrix(queries());
    const std::uint64_t b = wgmma_matrix(memory_.keys_of(stage) + own_panels());
    // Panels behind those of the values.
    const std::uint64_t turned = wgmma_matrix(
        memory_.keys_of(stage) + static_cast<std::uint32_t>((Shape::kDim / 64 + group_) * Shape::kPanelBytes));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Shape::kColumns / 16; ++k) {
      const auto a_offset = static_cast<std::uint64_t>((k / 4 * Shape::kQueryPanelBytes + k % 4 * 32) >> 4);
      const auto b_offset = static_cast<std::uint64_t>((k / 4 * Shape::kPanelBytes + k % 4 * 32) >> 4);
      const bool turns = Shape::kOneTile && k < 4;
      ScoreProduct<Shape::kKeys>::run(score_, a + a_offset, turns ? turned + b_offset : b + b_offset, k > 0);
    }
    wgmma_commit();
  }
  // O += P V under way.
  __device__ void start_values(int tile, int stage, std::uint32_t parity) {
    if constexpr (!Shape::kOneTile) barrier_wait(memory_.full_values(stage), parity);
    clear_values(tile, stage);
    const std::uint64_t b = wgmma_matrix(memory_.values_of(stage) + own_panels(), Shape::kPanelBytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Shape::kKeys / 16; ++k) {
      ValueProduct<Shape::kColumns>::run(out_, weights_[k], b + static_cast<std::uint64_t>(k * 2048 >> 4));
    }
    wgmma_commit();
  }

  // A weight of zero times what an unwritten row holds may be NaN. Both warpgroups clear, each before it reads. In the
  // shared form values have been read for scores before, by both (exchange_scores).
  __device__ void clear_values(int tile, int stage) const {
    const int first = walk_.position(tile);
    const int low = max(work_.low - first, 0);
    const int high = min(walk_.end(tile) - first, Shape::kKeys);
    if (low == 0 && high == Shape::kKeys) return;
    constexpr int kChunks = Shape::kDim / 8;
    for (int i = thread_; i < Shape::kKeys * kChunks; i += 128) {
      const int row = i / kChunks;
      if (row >= low && row < high) continue;
      store16(chunk_address<Shape::kKeys>(memory_.values_of(stage), row, i % kChunks), make_uint4(0, 0, 0, 0));
    }
    async_fence_shared();
    named_sync(1 + group_, 128);
  }

  // Q K^T of the next tile runs while this one's values are multiplied, and the softmax of the next one beside them.
  __device__ void run_overlapped(int tiles) {
    start_scores(0, 0);
    wgmma_wait<0>();
    release(memory_.free_keys(0));
    weigh(0);
    pack_weights();
    int stage = 0;
    std::uint32_t parity = 0;
    for (int tile = 1; tile < tiles; ++tile) {
      const int next = stage + 1 == Shape::kStages ? 0 : stage + 1;
      const std::uint32_t next_parity = next == 0 ? parity ^ 1 : parity;
      start_scores(next, next_parity);
      start_values(tile - 1, stage, parity);
      wgmma_wait<1>();
      release(memory_.free_keys(next));
      weigh(tile);
      wgmma_wait<0>();
      release(memory_.free_values(stage));
      scale_sums();
      pack_weights();
      stage = next;
      parity = next_parity;
    }
    start_values(tiles - 1, stage, parity);
    wgmma_wait<0>();
  }

  // Both warpgroups add the halves of the depth; a thread's scores are those of its twin.
  __device__ void exchange_scores() {
    const std::uint32_t own = memory_.exchange + static_cast<std::uint32_t>(group_ * (64 * Shape::kKeys * 4));
    const std::uint32_t other = memory_.exchange + static_cast<std::uint32_t>((group_ ^ 1) * (64 * Shape::kKeys * 4));
    const auto at = [&](int i) { return static_cast<std::uint32_t>((i * 128 + thread_) * 16); };
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 8; ++i) {
      store16(own + at(i), make_uint4(__float_as_uint(score_[i * 4]), __float_as_uint(score_[i * 4 + 1]),
                                      __float_as_uint(score_[i * 4 + 2]), __float_as_uint(score_[i * 4 + 3])));
    }
    named_sync(3, 256);
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 8; ++i) {
      const float4 value = load16(other + at(i));
      score_[i * 4] += value.x;
      score_[i * 4 + 1] += value.y;
      score_[i * 4 + 2] += value.z;
      score_[i * 4 + 3] += value.w;
    }
    named_sync(4, 256);  // the halves may be overwritten
  }

  __device__ void mask(int first, int end) {
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 2; ++i) {
      const int key = first + i / 4 * 8 + (lane_ & 3) * 2 + i % 2;
      const int query = position_[i / 2 % 2];
      const bool seen = key <= query && key >= work_.low && key < end && (p_.window == 0 || query - key < p_.window);
      score_[i] = seen ? score_[i] : -INFINITY;
    }
  }

  // Scores become weights exp2((S - largest) scale); factor_ brings sums to the new largest score.
  __device__ void weigh(int tile) {
    const int first = walk_.position(tile);
    const int end = walk_.end(tile);
    const bool partial = first < work_.low || first + Shape::kKeys > end || first + Shape::kKeys - 1 > first_query_ ||
                         (p_.window > 0 && last_query_ - first >= p_.window);
    if (partial) mask(first, end);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = score_[half * 2];
#pragma unroll
      for (int n = 0; n < Shape::kKeys / 8; ++n) {
        most = fmaxf(most, fmaxf(score_[n * 4 + half * 2], score_[n * 4 + half * 2 + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      most = fmaxf(most, largest_[half]);
      // A row that has seen no key yet keeps -inf; its weights are exp2(-inf - 0).
      const float base = most == -INFINITY ? 0.0f : most * p_.scale;
      factor_[half] = exp2_fast(fmaf(largest_[half], p_.scale, -base));
      largest_[half] = most;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < Shape::kKeys / 8; ++n) {
        for (int i = n * 4 + half * 2; i < n * 4 + half * 2 + 2; ++i) {
          score_[i] = exp2_fast(fmaf(score_[i], p_.scale, -base));
          sum += score_[i];
        }
      }
      sum_[half] = fmaf(sum_[half], factor_[half], sum);
    }
  }
  // Most tiles bring no new largest score.
  __device__ void scale_sums() {
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; ++i) out_[i] *= factor_[i / 2 % 2];
  }
  __device__ void pack_weights() {
#pragma unroll
    for (int k = 0; k < Shape::kKeys / 16; ++k) {
      for (int i = 0; i < 4; ++i) weights_[k][i] = pack_bf16(score_[k * 8 + i * 2], score_[k * 8 + i * 2 + 1]);
    }
  }

  const FlashParams& p_;
  const Work& work_;
  const WgmmaMemory<Shape>& memory_;
  const TileWalk& walk_;
  const int group_;
  int thread_, lane_;
  int position_[2];
  int first_query_, last_query_;
  float score_[Shape::kKeys / 2];
  std::uint32_t weights_[Shape::kKeys / 16][4];
  float out_[Shape::kColumns / 2] = {};
  float largest_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0.0f, 0.0f};
  float factor_[2];
};

}  // namespace facet::attention::cuda
