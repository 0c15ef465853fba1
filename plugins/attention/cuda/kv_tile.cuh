// Tiles of keys and values in shared memory.
//
// A tile of R rows lies in panels of 64 elements: panel p holds elements [64 p, 64 p + 64) of every row, 128 bytes a
// row, and within a row the 16-byte chunk c lies at c ^ (row % 8). Eight rows of one chunk then fall in different
// banks, and the same bytes are the 128-byte swizzle that wgmma reads.
#pragma once

#include "attention/cuda/device.cuh"
#include "attention/cuda/params.h"

namespace facet::attention::cuda {

constexpr int panel_count(int head_dim) {
  return (head_dim + 63) / 64;
}
constexpr int tile_bytes(int head_dim, int rows) {
  return panel_count(head_dim) * rows * 128;
}

template <int kRows>
__device__ __forceinline__ std::uint32_t chunk_address(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>((chunk >> 3) * (kRows * 128) + row * 128 + (((chunk & 7) ^ (row & 7)) << 4));
}

// Where the rows of one tile lie: element offsets of head 0, -1 for a row that must not be read. The offset of a scale
// lies beside it.
template <int kRows, bool kInt8>
struct TileRows {
  std::int64_t offset[kRows];
  float key_scale[kInt8 ? kRows : 1];
  float value_scale[kInt8 ? kRows : 1];
};

__device__ __forceinline__ std::uint32_t logical_row(const KvSource& kv, std::int32_t position) {
  const auto row = static_cast<std::uint32_t>(position);
  return kv.ring_rows > 0 ? row % kv.ring_rows : row;
}

// Quotient and rest.
struct Parts {
  std::uint32_t whole, rest;
};
struct Division {
  Division() = default;
  __device__ explicit Division(const KvSource& /*kv*/) {}
  __device__ Parts operator()(std::uint32_t number, std::uint32_t by) const { return {number / by, number % by}; }
};
// The same for numbers below 2^31 and the one divisor of a cache, with its inverse: a division costs 30 instructions.
struct DivisionByInverse {
  std::uint32_t inverse;  // (2^32 - 1) / by: the product is the quotient or one less
  __device__ explicit DivisionByInverse(const KvSource& kv)
      : inverse(0xffffffffu / (kv.ring_rows > 0 ? kv.ring_rows : kv.block_rows)) {}
  __device__ Parts operator()(std::uint32_t number, std::uint32_t by) const {
    const std::uint32_t whole = __umulhi(number, inverse);
    const std::uint32_t rest = number - whole * by;
    return rest < by ? Parts{whole, rest} : Parts{whole + 1, rest - by};
  }
};

struct RowPlace {
  std::int64_t offset;  // elements from the pool to the head's row; -1: must not be read
  std::int64_t scale;
};

// The row of `position`; outside [low, high) it must not be read. A ring has one block.
template <typename Divide = Division>
__device__ __forceinline__ RowPlace find_row(const KvSource& kv, int sequence, int head, std::int32_t only_block,
                                             std::int32_t position, std::int32_t low, std::int32_t high,
                                             Divide divide = {}) {
  if (position < low || position >= high) return {-1, 0};
  auto row = static_cast<std::uint32_t>(position);
  if (kv.ring_rows > 0) row = divide(row, kv.ring_rows).rest;
  std::int64_t block = only_block;
  std::int64_t in_block = row;
  if (kv.single_block == 0) {
    const Parts parts = divide(row, kv.block_rows);
    block = kv.table[sequence * kv.table_stride + parts.whole];
    in_block = parts.rest;
  }
  return {block * kv.block_stride + in_block * kv.row_stride + head * kv.head_stride,
          block * kv.scale_block_stride + in_block * kv.scale_row_stride + head * kv.scale_head_stride};
}

// Threads [0, kRows) of a block: rows [begin, begin + kRows) of a sequence, those outside [low, high) not to be read.
template <int kRows, bool kInt8>
__device__ __forceinline__ void find_rows(TileRows<kRows, kInt8>& rows, const KvSource& kv, int sequence, int head,
                                          std::int32_t only_block, std::int32_t begin, std::int32_t low,
                                          std::int32_t high) {
  const int index = static_cast<int>(threadIdx.x);
  if (index >= kRows) return;
  const RowPlace place = find_row(kv, sequence, head, only_block, begin + index, low, high);
  rows.offset[index] = place.offset;
  if constexpr (kInt8) {
    rows.key_scale[index] = place.offset >= 0 ? kv.key_scales[place.scale] : 0.0f;
    rows.value_scale[index] = place.offset >= 0 ? kv.value_scales[place.scale] : 0.0f;
  }
}

// Eight int8 codes as bf16, exactly.
__device__ __forceinline__ uint4 widen_codes(uint2 codes) {
  const auto code = [](std::uint32_t word, int byte) {
    return static_cast<float>(static_cast<std::int8_t>((word >> (8 * byte)) & 0xffu));
  };
  return make_uint4(pack_bf16(code(codes.x, 0), code(codes.x, 1)), pack_bf16(code(codes.x, 2), code(codes.x, 3)),
                    pack_bf16(code(codes.y, 0), code(codes.y, 1)), pack_bf16(code(codes.y, 2), code(codes.y, 3)));
}

// One 16-byte chunk of bf16, or 8 codes widened to it. A row that must not be read becomes zeros, so that a weight of
// zero times it is zero. bf16 is under way when this returns (the caller commits), int8 is complete.
template <bool kInt8>
__device__ __forceinline__ void copy_chunk(std::uint32_t to, const void* pool, std::int64_t offset, int chunk) {
  const bool valid = offset >= 0;
  const std::int64_t at = (valid ? offset : 0) + chunk * 8;
  if constexpr (kInt8) {
    const uint2 codes =
        valid ? __ldcg(reinterpret_cast<const uint2*>(static_cast<const std::int8_t*>(pool) + at)) : make_uint2(0, 0);
    store16(to, widen_codes(codes));
  } else {
    copy16_async(to, static_cast<const __nv_bfloat16*>(pool) + at, valid);
  }
}

template <int kDim, int kRows, int kThreads, bool kInt8>
__device__ __forceinline__ void load_tile(std::uint32_t tile, const void* pool, const TileRows<kRows, kInt8>& rows) {
  constexpr int kChunks = kDim / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    copy_chunk<kInt8>(chunk_address<kRows>(tile, row, chunk), pool, rows.offset[row], chunk);
  }
}

}  // namespace facet::attention::cuda
