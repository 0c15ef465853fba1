// Address arithmetic of abi::KvView, once for everybody: contiguous, ring and paged are one formula.
#pragma once

#include <algorithm>

#include "facet/abi/kv_layout.h"
#include "facet/sdk/numeric.h"

namespace facet::sdk {

// Offset in elements of block `block`, in 64 bits: id 32,768 of blocks of 65,536 elements is 2,147,483,648.
constexpr std::int64_t block_offset(std::int64_t block, std::int64_t block_stride) {
  return block * block_stride;
}

// Rows of one sequence that lie one behind the other in memory (row_stride apart): positions [position, position +
// count).
struct KvRun {
  std::int64_t position;
  std::int64_t count;
  std::int64_t offset;        // elements from keys/values to head 0 of the first row
  std::int64_t scale_offset;  // elements from key_scales/value_scales
};

// The longest run that starts at `position` and ends before `end`. Requires position < end and the rows resident.
inline KvRun kv_run(const abi::KvView& view, std::int64_t sequence, std::int64_t position, std::int64_t end) {
  const std::int64_t row = view.ring_rows > 0 ? position % view.ring_rows : position;
  const std::int64_t in_block = row % view.layout.block_rows;
  std::int64_t limit = view.layout.block_rows - in_block;
  if (view.ring_rows > 0) limit = std::min(limit, view.ring_rows - row);
  const std::int64_t block = view.block_table[sequence * view.table_stride + row / view.layout.block_rows];
  return {position, std::min(limit, end - position),
          block_offset(block, view.block_stride) + in_block * view.row_stride,
          block_offset(block, view.scale_block_stride) + in_block * view.scale_row_stride};
}

// body(run) over all runs of positions [begin, end) of a sequence, in order of position.
template <typename Body>
void for_each_kv_run(const abi::KvView& view, std::int64_t sequence, std::int64_t begin, std::int64_t end,
                     Body&& body) {
  while (begin < end) {
    const KvRun run = kv_run(view, sequence, begin, end);
    body(run);
    begin += run.count;
  }
}

// First position that the query at `position` may see under `window` (0: all).
constexpr std::int64_t window_begin(std::int64_t position, std::int64_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// Strides of a block in the order of `layout`, dense, block start to block start rounded up to the alignment.
struct KvStrides {
  std::int64_t block, row, head;                    // elements
  std::int64_t scale_block, scale_row, scale_head;  // floats; 0 without scales
};

inline void set_strides(abi::KvView& view, const KvStrides& strides) {
  view.block_stride = strides.block;
  view.row_stride = strides.row;
  view.head_stride = strides.head;
  view.scale_block_stride = strides.scale_block;
  view.scale_row_stride = strides.scale_row;
  view.scale_head_stride = strides.scale_head;
}

constexpr std::int64_t element_bytes(abi::DType type) {
  switch (type) {
    case abi::DType::f32:
    case abi::DType::i32:
      return 4;
    case abi::DType::bf16:
    case abi::DType::f16:
      return 2;
    case abi::DType::i8:
    case abi::DType::u8:
      return 1;
    case abi::DType::none:
      return 0;
  }
  return 0;
}

// Elements of a head's row of keys or of values; in the shared form of both, which are one.
constexpr std::int64_t kv_row_width(std::int64_t head_dim, std::int64_t key_channels) {
  return head_dim + key_channels;
}
// Elements of a key.
constexpr std::int64_t key_width(std::int64_t head_dim, std::int64_t key_channels) {
  return key_channels == 0 ? head_dim : key_channels;
}
// Elements of a key and its value together.
constexpr std::int64_t key_value_width(std::int64_t head_dim, std::int64_t key_channels) {
  return head_dim + key_width(head_dim, key_channels);
}

// `width`: kv_row_width().
constexpr KvStrides kv_strides(const abi::KvLayout& layout, std::int64_t kv_heads, std::int64_t width) {
  const std::int64_t rows = layout.block_rows;
  const bool token_major = layout.order == abi::KvOrder::token_major;
  KvStrides strides{};
  strides.row = token_major ? kv_heads * width : width;
  strides.head = token_major ? width : rows * width;
  const std::int64_t unit =
      std::max<std::int64_t>(1, layout.alignment / std::max<std::int64_t>(1, element_bytes(layout.element)));
  strides.block = round_up(rows * kv_heads * width, unit);
  if (layout.scales == abi::KvScales::per_row_head) {
    strides.scale_row = token_major ? kv_heads : 1;
    strides.scale_head = token_major ? 1 : rows;
    strides.scale_block = round_up(rows * kv_heads, std::max<std::int64_t>(1, layout.alignment / 4));
  }
  return strides;
}

}  // namespace facet::sdk
