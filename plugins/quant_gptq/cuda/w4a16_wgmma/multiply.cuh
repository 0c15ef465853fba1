// The multiplying warpgroups: codes to operands, products, scales.
#pragma once

#include "quant_gptq/cuda/device/wgmma.cuh"
#include "quant_gptq/cuda/w4a16_wgmma/block.cuh"
#include "quant_gptq/cuda/w4a16_wgmma/codes.cuh"
#include "quant_gptq/cuda/w4a16_wgmma/store.cuh"

namespace facet::linear {

// One of the multiplying warpgroups.
template <typename T, int BITS, int SEGMENTS>
class Multiplier {
 public:
  __device__ __forceinline__ Multiplier(const WgmmaArgs& args, const TileMemory<T>& memory)
      : a_(args),
        m_(memory),
        thread_(static_cast<int>(threadIdx.x) % 128),
        group_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0)) {  // to the compiler the same in a warp
    const int unit = 2 * T::kBlocks * group_ + (warp() >> 1);
    first_codes_ = static_cast<std::uint32_t>(m_.w - block_memory_1024) + unit * m_.unit_bytes +
                   (warp() & 1) * kTileBytes + lane() * 16;
    side_ = 2 * kTileBytes + slot() * 2 - (warp() & 1) * kTileBytes - lane() * 16;
    keep(first_codes_);
    keep(side_);
#pragma unroll
    for (int b = 0; b < kTogether; ++b) zero_pairs(0x0808, zero_[b]);
  }

  __device__ __forceinline__ void run() {
    const TileWalk walk(a_);
    const float factor = *reinterpret_cast<const float*>(a_.packed);
#pragma unroll 1
    for (int tile = walk.first; tile < a_.tiles; tile += walk.step) {
      clear();
      multiply_tile(walk.chunks);
      if (a_.splits > 1) {
        write_partial();
      } else {
        write_tile(tile, factor);
      }
    }
  }

 private:
  static constexpr int kSteps = 8 / SEGMENTS;  // of a segment
  // Steps multiplied at a time: operands of two groups are in registers.
  static constexpr int kMostSteps = T::kBlocks * T::kColumns >= 96 ? 2 : 4;
  static constexpr int kGroupSteps = kSteps < kMostSteps ? kSteps : kMostSteps;
  static constexpr int kTileBytes = BITS * 256;
  // Codes of the next chunk are loaded while the last products of this one are under way.
  static constexpr bool kLoadAhead = BITS == 4;
  static constexpr int kAheadLoads = kLoadAhead ? 2 : 1;
  static constexpr int kTogether = T::kTogether;
  static constexpr int kLast = T::kBlocks - kTogether;  // the first of the blocks that are multiplied last

  __device__ __forceinline__ int lane() const {
    return thread_ & 31;
  }
  __device__ __forceinline__ int warp() const {
    return thread_ >> 5;
  }
  // Of this lane's two rows of W among those of a unit.
  __device__ __forceinline__ int slot() const {
    return (lane() >> 2) * 4 + (warp() & 1) * 2;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int b = 0; b < T::kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < T::kSums; ++i) total_[b][i] = 0.0f;
    }
  }

  // `left`: chunks of the tile.
  __device__ __forceinline__ void multiply_tile(int left) {
    bool open = false;
#pragma unroll 1
    do {
      if (!open) {
        barrier_wait(m_.full + 8 * stage_, parity_);
        open_stage();
      }
      const std::uint32_t used = m_.empty + 8 * stage_;
      int chunks = min(left, a_.stage_chunks);
      left -= chunks;
#pragma unroll 1
      do {
        start_chunk();
        // The next chunk's codes may come while the last products are under way.
        if (--chunks > 0) {
          codes_ += a_.shape.chunk_bytes;
          columns_ += T::kChunkBytes >> 4;
          load_ahead();
        } else {
          next_stage();
          open = left > 0 && __all_sync(~0u, barrier_test(m_.full + 8 * stage_, parity_));
          if (open) open_stage();
        }
        finish_segment<kLast>();
      } while (chunks > 0);
      __syncwarp();  // all lanes have read their codes and scales
      if (lane() == 0) barrier_arrive(used);
    } while (left > 0);
  }

  __device__ __forceinline__ void next_stage() {
    if (++stage_ == a_.stages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  // Points to the first chunk of a stage that is there.
  __device__ __forceinline__ void open_stage() {
    codes_ = first_codes_ + stage_ * T::kUnits * m_.unit_bytes;
    columns_ = wgmma_matrix(shared_address(m_.x) + stage_ * a_.stage_chunks * T::kChunkBytes);
    load_ahead();
  }

  // This warp's tile of a block, the lane's first 16 bytes.
  __device__ __forceinline__ const unsigned char* tile_data(int block) const {
    return block_memory_1024 + (codes_ + 2 * block * m_.unit_bytes);
  }

  // Codes of the blocks from `first` on that are multiplied together.
  __device__ __forceinline__ void load_ahead(int first = 0) {
    if constexpr (kLoadAhead) {
#pragma unroll
      for (int b = 0; b < kTogether; ++b) {
#pragma unroll
        for (int i = 0; i < 2; ++i) words_[b][i] = *reinterpret_cast<const uint4*>(tile_data(first + b) + i * 512);
      }
    }
  }

  // Scales the sums of the blocks from FIRST on.
  template <int FIRST>
  __device__ __forceinline__ void finish_segment() {
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < kTogether; ++b) {
      wgmma_sums_ready(sums_[b]);
#pragma unroll
      for (int i = 0; i < T::kSums; ++i)
        total_[FIRST + b][i] = fmaf((i & 2) != 0 ? scales_[b].y : scales_[b].x, sums_[b][i], total_[FIRST + b][i]);
      // Scaled before the next products start: the sums of two segments at a time do not fit.
      if constexpr (kLast > 0) wgmma_sums_ready(total_[FIRST + b]);
    }
  }

  // All products of a chunk; those of its last segment and blocks are still under way.
  __device__ __forceinline__ void start_chunk() {
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      start_segment<0>(segment);
      if constexpr (kLast > 0) {
        load_ahead(kLast);
        finish_segment<0>();
        start_segment<kLast>(segment);
      }
      if (segment + 1 < SEGMENTS) {
        if constexpr (kLast > 0) load_ahead(0);
        finish_segment<kLast>();
      }
    }
  }

  // Scales and zeros of a segment of the blocks from FIRST on.
  template <int FIRST>
  __device__ __forceinline__ void load_side(int segment) {
#pragma unroll
    for (int b = 0; b < kTogether; ++b) {
      const unsigned char* side = tile_data(FIRST + b) + static_cast<int>(side_);
      scales_[b] = __half22float2(*reinterpret_cast<const __half2*>(side + segment * kUnitRows * 2));
      if constexpr (BITS == 4) {
        if (a_.shape.asymmetric != 0) {
          const int zeros = (2 * SEGMENTS + segment) * kUnitRows - slot();  // from the scales of segment 0 on
          zero_pairs(*reinterpret_cast<const std::uint16_t*>(side + zeros), zero_[b]);
        }
      }
    }
  }

  // Starts the products of one segment of the blocks from FIRST on.
  template <int FIRST>
  __device__ __forceinline__ void start_segment(int segment) {
    load_side<FIRST>(segment);
#pragma unroll
    for (int first = 0; first < kSteps; first += kGroupSteps) {
      const int step0 = segment * kSteps + first;
      std::uint32_t operand[kTogether][kGroupSteps][4];
#pragma unroll
      for (int b = 0; b < kTogether; ++b) {
        uint4 words[kCodeLoads<BITS, kGroupSteps>];
        if constexpr (kLoadAhead) {
#pragma unroll
          for (int i = 0; i < kCodeLoads<BITS, kGroupSteps>; ++i) words[i] = words_[b][step0 / 4 + i];
          if (step0 % 4 != 0) words[0] = make_uint4(words[0].z, words[0].w, 0, 0);
        } else {
          load_codes<BITS, kGroupSteps>(tile_data(FIRST + b), step0, words);
        }
        operands_of<BITS, kGroupSteps>(words, zero_[b], operand[b]);
      }
      multiply_steps(operand, step0, first == 0);
      // At most this group stays under way: registers of older operands are free.
      if (first + kGroupSteps < kSteps) wgmma_wait<1>();
    }
  }

  __device__ __forceinline__ void multiply_steps(const std::uint32_t (&operand)[kTogether][kGroupSteps][4], int step0,
                                                 bool starts) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kGroupSteps; ++i) {
      const int step = step0 + i;
      const std::uint64_t x = columns_ + ((step / 4 * T::kPanelBytes + step % 4 * 32) >> 4);
#pragma unroll
      for (int b = 0; b < kTogether; ++b) {
        if (starts && i == 0) {
          Wgmma<T::kColumns, false>::run(sums_[b], operand[b][i], x);
        } else {
          Wgmma<T::kColumns, true>::run(sums_[b], operand[b][i], x);
        }
      }
    }
    wgmma_commit();
  }

  // Of sum e (0..3) of 8 columns of a block: the column, and the row among the warpgroup's.
  __device__ __forceinline__ int column_of(int e) const {
    return 2 * (lane() & 3) + (e & 1);
  }
  __device__ __forceinline__ int row_of(int block, int e) const {
    return block * 64 + warp() * 16 + (e >> 1) * 8 + (lane() >> 2);
  }

  // This thread's sums of COLUMNS columns from `first` on to target[column][row of W], STRIDE apart.
  template <int COLUMNS, int STRIDE>
  __device__ __forceinline__ void put_sums(float* target, int first) const {
#pragma unroll
    for (int b = 0; b < T::kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; ++i)
        target[(i / 4 * 8 + column_of(i & 3)) * STRIDE + row_of(b, i & 3)] = total_[b][first / 2 + i];
    }
  }

  // Through shared memory, some columns at a time, so that stores are whole lines.
  __device__ __forceinline__ void write_tile(int tile, float factor) {
    constexpr int kSlice = T::kSliceColumns;
    const int first_row = tile % a_.column_tiles * T::kColumns;
    const int first_unit = tile / a_.column_tiles * T::kUnits + 2 * T::kBlocks * group_;
    named_sync(1 + group_, 128);  // slices of the tile before are read
#pragma unroll
    for (int j = 0; j < T::kColumns / kSlice; ++j) {
      const int row = first_row + kSlice * j;
      if (row >= a_.rows) break;
      float* slice = m_.slices + (group_ * T::kSliceBuffers + j % T::kSliceBuffers) * T::kSliceFloats;
      if (T::kSliceBuffers == 1 && j > 0) named_sync(1 + group_, 128);
      put_sums<kSlice, T::kSliceStride>(slice, kSlice * j);
      named_sync(1 + group_, 128);
      const float* own = slice + warp() * T::kSliceStride;
      store_units<kSlice / 4, 2 * T::kBlocks>(a_, row + warp(), 4, first_unit, lane(), [&](int i, int at) {
        return factor * own[4 * i * T::kSliceStride + at];
      });
    }
  }

  // The ring has served: its memory takes the sums of all columns.
  __device__ __forceinline__ void write_partial() {
    named_sync(1, T::kConsumers);
    float* partial = reinterpret_cast<float*>(m_.x) + 64 * T::kBlocks * group_;
    put_sums<T::kColumns, T::kPartialStride>(partial, 0);
  }

  const WgmmaArgs& a_;
  const TileMemory<T>& m_;
  const int thread_;
  const int group_;
  int stage_ = 0;
  std::uint32_t parity_ = 0;
  // In the block's shared memory, in numbers of 32 bits: this lane's first codes in stage 0 and in the chunk at hand,
  // and from codes to scales.
  std::uint32_t first_codes_;
  std::uint32_t codes_;
  std::uint32_t side_;
  std::uint64_t columns_;  // the chunk's x, a wgmma_matrix()
  std::uint32_t zero_[kTogether][2];
  float2 scales_[kTogether];
  uint4 words_[kTogether][kAheadLoads];
  float total_[T::kBlocks][T::kSums];
  float sums_[kTogether][T::kSums] = {};
};

}  // namespace facet::linear
