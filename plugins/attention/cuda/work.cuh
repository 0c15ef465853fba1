// Which queries and keys a block works on.
#pragma once

#include "attention/cuda/kv_tile.cuh"

namespace facet::attention::cuda {

// The work of a block: rows [row0, row0 + rows) of a sequence, keys [low, high).
struct Work {
  int sequence, head;  // decode: place among the blocks that share no query heads
  int kv_head;         // decode
  int token_begin, first_position;
  std::int32_t only_block;  // id of the sequence's block when it has just one
  int row0, rows;
  int low, high;
  int parts;  // blocks that share the keys
};

// Fills sequence, head, positions and rows; false when the sequence is none of this kernel's or `row0` lies past it.
// Call after wait_for_predecessor(). The four loads go out together.
template <bool kDecode>
__device__ __forceinline__ bool find_rows_of_block(const FlashParams& p, Work& work, int row0, int rows) {
  work.sequence = static_cast<int>(blockIdx.z);
  work.head = static_cast<int>(blockIdx.y);
  work.token_begin = p.token_begin[work.sequence];
  const int token_end = p.token_begin[work.sequence + 1];
  work.first_position = p.first_position[work.sequence];
  work.only_block = p.kv.single_block != 0 ? p.kv.table[work.sequence * p.kv.table_stride] : 0;
  const int packed = (token_end - work.token_begin) * p.group;
  if (packed == 0 || (packed <= p.decode_rows) != kDecode) return false;
  work.row0 = row0;
  work.rows = min(rows, packed - row0);
  if (work.rows <= 0) return false;
  const int first = work.first_position + row0 / p.group;
  work.high = work.first_position + (row0 + work.rows - 1) / p.group + 1;
  work.low = p.window > 0 ? max(0, first - p.window + 1) : 0;
  work.parts = 1;
  return true;
}

// Output of a packed row of the block.
template <int kDim>
__device__ __forceinline__ __nv_bfloat16* output_row(const FlashParams& p, const Work& work, int row) {
  const int packed = work.row0 + row;
  const std::int64_t token = work.token_begin + packed / p.group;
  const int head = work.head * p.group + packed % p.group;
  return static_cast<__nv_bfloat16*>(p.output) + token * p.output_stride + head * kDim;
}

}  // namespace facet::attention::cuda
