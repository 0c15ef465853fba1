// A block of two multiplying warpgroups and a copying warp takes tiles of 128 or 256 rows of W by COLUMNS rows of x. A
// warp turns its 16 rows of codes to bf16 in registers, as wgmma's left operand; x comes by the tensor copy engine, in
// shared memory as wgmma reads it. Scales come onto the fp32 sums of a segment.
#pragma once

#include <cooperative_groups.h>

#include "quant_gptq/cuda/device/wgmma.cuh"
#include "quant_gptq/cuda/w4a16_wgmma/codes.cuh"
#include "quant_gptq/cuda/w4a16_wgmma/kernels.h"
#include "quant_gptq/cuda/w4a16_wgmma/layout.h"

namespace facet::linear {

template <int COLUMNS, int BLOCKS>
struct Tile {
  static constexpr int kColumns = COLUMNS;
  static constexpr int kBlocks = BLOCKS;  // of 64 rows of W, of a warpgroup
  static constexpr int kGroups = kTileGroups;
  static constexpr int kUnits = 2 * kGroups * BLOCKS;
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kPanelBytes = COLUMNS * 128;    // 64 inputs of x
  static constexpr int kChunkBytes = 2 * kPanelBytes;  // of x
  static constexpr int kSums = COLUMNS / 2;            // of a thread and block of 64 rows
  static constexpr int kSliceColumns = tile_slice_columns(COLUMNS);
  static constexpr int kSliceBuffers = tile_slice_buffers(COLUMNS);
  static constexpr int kSliceStride = tile_slice_stride(BLOCKS);
  static constexpr int kSliceFloats = tile_slice_floats(COLUMNS, BLOCKS);
  static constexpr int kPartialStride = tile_partial_stride(BLOCKS);
  // Blocks multiplied at a time: sums of a segment take as many registers as those of all.
  static constexpr int kTogether = BLOCKS * COLUMNS <= 128 ? BLOCKS : 1;
  // Registers of a thread, from what its warpgroup has at the launch to what its part takes.
  static constexpr int kCopyRegisters = COLUMNS >= 96 ? 24 : 40;
  static constexpr int kMultiplyRegisters = COLUMNS >= 96 ? 240 : 232;
};

// Shared memory: the ring of x, the ring of W, slices of sums for each warpgroup, barriers.
template <typename T>
struct TileMemory {
  unsigned char* x;
  unsigned char* w;
  float* slices;
  std::uint32_t full;
  std::uint32_t empty;
  int unit_bytes;  // of a stage

  __device__ __forceinline__ TileMemory(unsigned char* base, const WgmmaArgs& a) {
    base += (1024 - (shared_address(base) & 1023)) & 1023;
    unit_bytes = a.stage_chunks * a.shape.chunk_bytes;
    x = base;
    w = x + a.stages * a.stage_chunks * T::kChunkBytes;
    slices = reinterpret_cast<float*>(w + a.stages * T::kUnits * unit_bytes);
    full = shared_address(slices + T::kGroups * T::kSliceBuffers * T::kSliceFloats);
    empty = full + 8 * kMaxStages;
  }
};

// A block's share of the inputs and its way through the tiles.
struct TileWalk {
  int first_chunk;
  int chunks;
  int first;
  int step;
  int rank;

  __device__ __forceinline__ explicit TileWalk(const WgmmaArgs& a) {
    rank = static_cast<int>(blockIdx.x) % a.splits;
    first = static_cast<int>(blockIdx.x) / a.splits;
    step = static_cast<int>(gridDim.x) / a.splits;
    first_chunk = a.shape.chunks * rank / a.splits;
    chunks = a.shape.chunks * (rank + 1) / a.splits - first_chunk;
  }
};

inline constexpr int kCopyWarps = 4;

// x without alignment: the copying warps write the swizzled panels themselves.
template <typename T>
__device__ __forceinline__ void copy_unaligned(const WgmmaArgs& a, unsigned char* target, int first_row,
                                               int first_chunk, int chunks) {
  const auto* x = static_cast<const unsigned short*>(a.x);
  const int inputs = chunks * kChunkInputs;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 128; i < inputs * T::kColumns; i += 32 * kCopyWarps) {
    const int input = i % inputs;
    const int column = i / inputs;
    const long long k = static_cast<long long>(first_chunk) * kChunkInputs + input;
    const long long row = first_row + column;
    const unsigned short value = row < a.rows && k < a.shape.in_features ? x[row * a.x_stride + k] : 0;
    const int piece = (input % 64 / 8) ^ (column % 8);
    *reinterpret_cast<unsigned short*>(target + input / 64 * T::kPanelBytes + column * 128 + piece * 16 +
                                       input % 8 * 2) = value;
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// One of the copying warps. A copy takes its thread tens of clocks to start, so the four share those of a stage.
template <typename T>
class Copier {
 public:
  __device__ __forceinline__ Copier(const WgmmaArgs& args, const CUtensorMap& map, const TileMemory<T>& memory)
      : a_(args),
        map_(map),
        m_(memory),
        walk_(args),
        policy_(evict_first_policy()),
        warp_(static_cast<int>(threadIdx.x) % 128 / 32),
        first_(threadIdx.x % 32 == 0) {}

  // Weights of the first ring at once, x when it is there.
  __device__ __forceinline__ void run() {
    Place place{walk_.first, 0};
    int ahead = 0;
    for (; ahead < a_.stages && place.tile < a_.tiles; ++ahead, advance(place)) copy_weights(place, ahead);
    wait_for_inputs();
    asm volatile("fence.proxy.async;" ::: "memory");  // ordinary stores of the launch before, read by the copy engine
    Place early{walk_.first, 0};
    for (int stage = 0; stage < ahead; ++stage, advance(early)) copy_inputs(early, stage);
    int stage = 0;
    std::uint32_t parity = 0;
    for (; place.tile < a_.tiles; advance(place)) {
      barrier_wait(m_.empty + 8 * stage, parity);
      copy_weights(place, stage);
      copy_inputs(place, stage);
      if (++stage == a_.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

 private:
  // Stages of a tile run over into the next.
  struct Place {
    int tile;
    int chunk;
  };
  __device__ __forceinline__ void advance(Place& place) const {
    place.chunk += a_.stage_chunks;
    if (place.chunk < walk_.chunks) return;
    place.chunk = 0;
    place.tile += walk_.step;
  }
  __device__ __forceinline__ int chunks_at(const Place& place) const {
    return min(a_.stage_chunks, walk_.chunks - place.chunk);
  }
  // Of `count` things this warp's share.
  __device__ __forceinline__ int share(int count) const { return (count - warp_ + kCopyWarps - 1) / kCopyWarps; }

  // Also announces all bytes that this warp copies to the stage.
  __device__ __forceinline__ void copy_weights(const Place& place, int stage) const {
    if (!first_) return;
    const Rows32& shape = a_.shape;
    const int first_unit = place.tile / a_.column_tiles * T::kUnits;
    const int units = min(T::kUnits, shape.units - first_unit);
    const int chunks = chunks_at(place);
    const int bytes = chunks * shape.chunk_bytes;
    const std::uint32_t full = m_.full + 8 * stage;
    barrier_expect(full, share(units) * bytes + (a_.tensor != 0 ? share(2 * chunks) * T::kPanelBytes : 0));
    const long long unit_bytes = static_cast<long long>(shape.chunks) * shape.chunk_bytes;
    const unsigned char* source = a_.packed + kHeaderBytes + (first_unit + warp_) * unit_bytes +
                                  static_cast<long long>(walk_.first_chunk + place.chunk) * shape.chunk_bytes;
    std::uint32_t target = shared_address(m_.w) + (stage * T::kUnits + warp_) * m_.unit_bytes;
    for (int unit = warp_; unit < units; unit += kCopyWarps) {
      bulk_copy(target, source, bytes, full, policy_);
      source += kCopyWarps * unit_bytes;
      target += kCopyWarps * m_.unit_bytes;
    }
  }

  __device__ __forceinline__ void copy_inputs(const Place& place, int stage) const {
    const int offset = stage * a_.stage_chunks * T::kChunkBytes;
    const int row = place.tile % a_.column_tiles * T::kColumns;
    const int chunk = walk_.first_chunk + place.chunk;
    const std::uint32_t full = m_.full + 8 * stage;
    if (a_.tensor == 0) {
      copy_unaligned<T>(a_, m_.x + offset, row, chunk, chunks_at(place));
      __syncwarp();
      if (first_) barrier_arrive(full);
    } else if (first_) {
      for (int panel = warp_; panel < 2 * chunks_at(place); panel += kCopyWarps)
        tensor_copy(shared_address(m_.x) + offset + panel * T::kPanelBytes, map_, chunk * kChunkInputs + panel * 64,
                    row, full);
    }
  }

  const WgmmaArgs& a_;
  const CUtensorMap& map_;
  const TileMemory<T>& m_;
  const TileWalk walk_;
  const std::uint64_t policy_;
  const int warp_;
  const bool first_;
};

__device__ __forceinline__ void store_output(unsigned char* at, bool f32, float value) {
  if (f32) {
    *reinterpret_cast<float*>(at) = value;
  } else {
    *reinterpret_cast<__nv_bfloat16*>(at) = __float2bfloat16_rn(value);
  }
}

// A warp writes UNITS units of ROWS rows of y, row first_row and every row_step-th from it. read(i, at): the sum of the
// i-th of these rows and of row `at` of the units.
template <int ROWS, int UNITS, typename Read>
__device__ __forceinline__ void store_units(const WgmmaArgs& a, int first_row, int row_step, int first_unit, int lane,
                                            Read read) {
  const bool f32 = a.output_f32 != 0;
  const int shift = f32 ? 2 : 1;
  const int outputs = static_cast<int>(a.shape.out_features);
  const int half = outputs / 2;
  const long long step = (row_step * a.y_stride) << shift;
  unsigned char* y = static_cast<unsigned char*>(a.y) + ((first_row * a.y_stride) << shift);
  // Gates and ups of two units side by side in the lanes of a warp.
  constexpr int kStores = UNITS / 2;
  if (a.fuse_gate != 0) {
    const int first = first_unit * 16 + lane;
    float values[ROWS][kStores];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
      for (int pair = 0; pair < kStores; ++pair) {
        const int at = (2 * pair + lane / 16) * kUnitRows + lane % 16;
        values[i][pair] = gelu_tanh(read(i, at)) * read(i, at + 16);
      }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      if (first_row + i * row_step >= a.rows) return;
#pragma unroll
      for (int pair = 0; pair < kStores; ++pair)
        if (first + 32 * pair < half) store_output(y + ((first + 32 * pair) << shift), f32, values[i][pair]);
      y += step;
    }
    return;
  }
  int columns[UNITS];  // of y; past its end where there is none
#pragma unroll
  for (int unit = 0; unit < UNITS; ++unit) {
    const int inside = (first_unit + unit) * 16 + lane % 16;
    columns[unit] = a.shape.gate == 0 ? (first_unit + unit) * kUnitRows + lane
                    : inside >= half  ? outputs
                    : lane < 16       ? inside
                                      : half + inside;
  }
  float values[ROWS][UNITS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int unit = 0; unit < UNITS; ++unit) values[i][unit] = read(i, unit * kUnitRows + lane);
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    if (first_row + i * row_step >= a.rows) return;
#pragma unroll
    for (int unit = 0; unit < UNITS; ++unit)
      if (columns[unit] < outputs)
        store_output(y + (static_cast<long long>(columns[unit]) << shift), f32, values[i][unit]);
    y += step;
  }
}

// Two bytes of shared memory when `wanted`, else `value`.
__device__ __forceinline__ std::uint32_t load_u16_if(bool wanted, std::uint32_t address, std::uint32_t value) {
  std::uint16_t result = static_cast<std::uint16_t>(value);
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %1, 0;\n @p ld.shared.u16 %0, [%2];\n}"
               : "+h"(result)
               : "r"(wanted ? 1 : 0), "r"(address)
               : "memory");
  return result;
}

// One of the multiplying warpgroups.
template <typename T, int BITS, int SEGMENTS>
class Multiplier {
 public:
  __device__ __forceinline__ Multiplier(const WgmmaArgs& args, const TileMemory<T>& memory)
      : a_(args),
        m_(memory),
        thread_(static_cast<int>(threadIdx.x) % 128),
        group_(static_cast<int>(threadIdx.x) / 128) {
    const int unit = 2 * T::kBlocks * group_ + (warp() >> 1);
    const int slot = (lane() >> 2) * 4 + (warp() & 1) * 2;
    tile_offset_ = (warp() & 1) * kTileBytes + lane() * 16;
    scale_offset_ = 2 * kTileBytes + slot * 2;
    zero_offset_ = 2 * kTileBytes + SEGMENTS * kUnitRows * 2 + slot;
    first_data_ = m_.w + unit * m_.unit_bytes;
  }

  __device__ __forceinline__ void run() {
    const TileWalk walk(a_);
    const float factor = *reinterpret_cast<const float*>(a_.packed);
#pragma unroll 1
    for (int tile = walk.first; tile < a_.tiles; tile += walk.step) {
      clear();
      open_stage(walk.chunks);
#pragma unroll 1
      for (int left = walk.chunks; left > 0; --left) multiply_chunk(left - 1);
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

  __device__ __forceinline__ int lane() const {
    return thread_ & 31;
  }
  __device__ __forceinline__ int warp() const {
    return thread_ >> 5;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int b = 0; b < T::kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < T::kSums; ++i) total_[b][i] = 0.0f;
    }
  }

  // Waits for the stage that comes next, of up to `left` chunks, and points to its data.
  __device__ __forceinline__ void open_stage(int left) {
    barrier_wait(m_.full + 8 * stage_, parity_);
    data_ = first_data_ + stage_ * T::kUnits * m_.unit_bytes;
    x_ = shared_address(m_.x) + stage_ * a_.stage_chunks * T::kChunkBytes;
    stage_left_ = min(left, a_.stage_chunks);
    load_ahead();
  }

  // This warp's tile of a block, the lane's first 16 bytes.
  __device__ __forceinline__ const unsigned char* tile_data(int block) const {
    return data_ + 2 * block * m_.unit_bytes + tile_offset_;
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
    }
  }

  __device__ __forceinline__ void multiply_chunk(int left) {
    constexpr int kLast = T::kBlocks - kTogether;
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      multiply_segment<0>(segment);
      if constexpr (kLast > 0) {
        load_ahead(kLast);
        finish_segment<0>();
        multiply_segment<kLast>(segment);
      }
      if (segment + 1 < SEGMENTS) {
        if constexpr (kLast > 0) load_ahead(0);
        finish_segment<kLast>();
      }
    }
    // The next chunk's codes may come while the last products are under way.
    const std::uint32_t used = m_.empty + 8 * stage_;
    const bool last = --stage_left_ == 0;
    if (!last) {
      data_ += a_.shape.chunk_bytes;
      x_ += T::kChunkBytes;
      load_ahead();
    } else if (++stage_ == a_.stages) {
      stage_ = 0;
      parity_ ^= 1;
    }
    const bool early = last && left > 0 && __all_sync(~0u, barrier_test(m_.full + 8 * stage_, parity_));
    if (early) open_stage(left);
    finish_segment<kLast>();
    if (last && lane() == 0) barrier_arrive(used);
    if (last && left > 0 && !early) open_stage(left);
  }

  // Starts the products of one segment of the blocks from FIRST on.
  template <int FIRST>
  __device__ __forceinline__ void multiply_segment(int segment) {
    std::uint32_t zero[kTogether][2];
#pragma unroll
    for (int b = 0; b < kTogether; ++b) {
      const unsigned char* unit = data_ + 2 * (FIRST + b) * m_.unit_bytes;
      scales_[b] = __half22float2(*reinterpret_cast<const __half2*>(unit + scale_offset_ + segment * kUnitRows * 2));
      if constexpr (BITS == 4)
        zero_pairs(
            load_u16_if(a_.shape.asymmetric != 0, shared_address(unit) + zero_offset_ + segment * kUnitRows, 0x0808),
            zero[b]);
    }
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
        operands_of<BITS, kGroupSteps>(words, zero[b], operand[b]);
      }
      multiply_steps(operand, step0, first == 0);
      // At most this group stays under way: registers of older operands are free.
      if (first + kGroupSteps < kSteps) wgmma_wait<1>();
    }
  }

  __device__ __forceinline__ void multiply_steps(const std::uint32_t (&operand)[kTogether][kGroupSteps][4], int step0,
                                                 bool starts) {
    const std::uint64_t columns = wgmma_columns(x_);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kGroupSteps; ++i) {
      const int step = step0 + i;
      const std::uint64_t x = columns + ((step / 4 * T::kPanelBytes + step % 4 * 32) >> 4);
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
#pragma unroll
      for (int b = 0; b < T::kBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < kSlice / 2; ++i)
          slice[(i / 4 * 8 + column_of(i & 3)) * T::kSliceStride + row_of(b, i & 3)] = total_[b][kSlice / 2 * j + i];
      }
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
    float* partial = reinterpret_cast<float*>(m_.x);
#pragma unroll
    for (int b = 0; b < T::kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < T::kSums; ++i)
        partial[(i / 4 * 8 + column_of(i & 3)) * T::kPartialStride + 64 * T::kBlocks * group_ + row_of(b, i & 3)] =
            total_[b][i];
    }
  }

  const WgmmaArgs& a_;
  const TileMemory<T>& m_;
  const int thread_;
  const int group_;
  int stage_ = 0;
  std::uint32_t parity_ = 0;
  int stage_left_ = 0;                            // chunks of the stage
  int tile_offset_, scale_offset_, zero_offset_;  // of this lane, in a chunk of a unit
  const unsigned char* first_data_;               // this warp's first unit in stage 0
  const unsigned char* data_;                     // and in the chunk at hand
  std::uint32_t x_;                               // the chunk's x
  float2 scales_[kTogether];
  uint4 words_[kTogether][kAheadLoads];
  float total_[T::kBlocks][T::kSums];
  float sums_[kTogether][T::kSums] = {};
};

// Adds the sums of the cluster's blocks, in order, for this block's share of the tile.
template <typename T>
__device__ __forceinline__ void finish_cluster(const WgmmaArgs& a, const TileMemory<T>& m) {
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  const TileWalk walk(a);
  const float factor = *reinterpret_cast<const float*>(a.packed);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = walk.first % a.column_tiles * T::kColumns;
  const int first_unit = walk.first / a.column_tiles * T::kUnits;
  const int items = T::kUnits / 4 * min(T::kColumns, a.rows - first_row);
  const float* partials[kMostSplits];
#pragma unroll
  for (int split = 0; split < kMostSplits; ++split)
    partials[split] = cluster.map_shared_rank(reinterpret_cast<float*>(m.x), split < a.splits ? split : 0);
#pragma unroll 1
  for (int item = walk.rank + a.splits * (static_cast<int>(threadIdx.x) / 32); item < items;
       item += a.splits * (T::kConsumers / 32)) {
    const int unit = item % (T::kUnits / 4) * 4;
    const int column = item / (T::kUnits / 4);
    const int offset = column * T::kPartialStride + unit * kUnitRows;
    store_units<1, 4>(a, first_row + column, 0, first_unit + unit, lane, [&](int, int at) {
      float parts[kMostSplits];
#pragma unroll
      for (int split = 0; split < kMostSplits; ++split)
        parts[split] = split < a.splits ? partials[split][offset + at] : 0.0f;
      float sum = 0.0f;
#pragma unroll
      for (int split = 0; split < kMostSplits; ++split) sum += parts[split];
      return factor * sum;
    });
  }
}

template <typename T, int BITS, int SEGMENTS>
__global__ void __launch_bounds__(kTileThreads, 1)
    wgmma_kernel(const __grid_constant__ WgmmaArgs a, const __grid_constant__ CUtensorMap map) {
  namespace cg = cooperative_groups;
  extern __shared__ __align__(1024) unsigned char base[];
  const TileMemory<T> m(base, a);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < a.stages; ++stage) {
      barrier_init(m.full + 8 * stage, (a.tensor != 0 ? 1 : 2) * kCopyWarps);
      barrier_init(m.empty + 8 * stage, T::kConsumers / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  launch_dependents();
  if (threadIdx.x < T::kConsumers) {
    more_registers<T::kMultiplyRegisters>();
    wait_for_inputs();  // also before the first write
    Multiplier<T, BITS, SEGMENTS>(a, m).run();
    if (a.splits == 1) return;
    cg::this_cluster().sync();
    if (static_cast<int>(blockIdx.x) / a.splits < a.tiles) finish_cluster<T>(a, m);
    cg::this_cluster().sync();  // others may still read this block's sums
  } else {
    fewer_registers<T::kCopyRegisters>();
    Copier<T>(a, map, m).run();
    if (a.splits == 1) return;
    __syncwarp();
    cg::this_cluster().sync();
    cg::this_cluster().sync();
  }
}

template <typename T, int BITS>
WgmmaKernel wgmma_kernel_of(int segments) {
  if (segments == 1) return wgmma_kernel<T, BITS, 1>;
  return segments == 2 ? wgmma_kernel<T, BITS, 2> : wgmma_kernel<T, BITS, 4>;
}

template <typename T>
WgmmaKernel wgmma_kernel_of(const Rows32& shape) {
  return shape.bits == 8 ? wgmma_kernel_of<T, 8>(shape.segments) : wgmma_kernel_of<T, 4>(shape.segments);
}

template <int COLUMNS>
WgmmaKernel wgmma_kernel_of(const Rows32& shape, int blocks) {
  if constexpr (tile_compiled(COLUMNS, 1)) {
    if (blocks == 1) return wgmma_kernel_of<Tile<COLUMNS, 1>>(shape);
  }
  if constexpr (tile_compiled(COLUMNS, 2)) {
    if (blocks == 2) return wgmma_kernel_of<Tile<COLUMNS, 2>>(shape);
  }
  return nullptr;
}

}  // namespace facet::linear
