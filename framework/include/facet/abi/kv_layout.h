// KV memory as a value: how rows are addressed, stored and scaled. Cache policies and attention kernels meet here.
#pragma once

#include "facet/abi/types.h"

namespace facet::abi {

// contiguous: row r of a sequence is row r of its only block.      ring: row = position modulo ring_rows, one block.
// paged: row r lies in block table[r / block_rows] at row r % block_rows.
enum class KvAddressing : std::uint32_t { none = 0, contiguous = 1, ring = 2, paged = 3 };

// token_major: block [rows, kv_heads, head_dim]; head_major: block [kv_heads, rows, head_dim].
enum class KvOrder : std::uint32_t { none = 0, token_major = 1, head_major = 2 };

// per_row_head: one float for each row and head: x = code * scale. Scales have the order of the block without head_dim.
enum class KvScales : std::uint32_t { none = 0, per_row_head = 1 };

// In an offer of an attention kernel a block_rows of 0 means any; everywhere else every member is exact.
struct KvLayout {
  std::uint32_t size;
  KvAddressing addressing;
  KvOrder order;
  DType element;  // f32, bf16 or i8
  KvScales scales;
  std::uint32_t block_rows;  // rows of a block; contiguous and ring: all rows of a sequence
  std::uint32_t alignment;   // bytes, of every block
};

// The new tokens of one step, side by side: sequence s owns rows [token_begin[s], token_begin[s + 1]) of every
// activation, at positions first_position[s], first_position[s] + 1, ... After the step's writes it holds
// first_position[s] + (token_begin[s + 1] - token_begin[s]) rows. A sequence may have zero tokens.
// Arrays lie in the memory of the problem's device; the counts and bounds are for the host that chooses a launch. A
// replayed graph sees other arrays behind the same pointers, within the same counts and bounds: a kernel takes from the
// counts only how much it launches.
struct BatchView {
  std::uint32_t size;
  std::int32_t sequence_count;
  std::int64_t token_count;
  const std::int32_t* token_begin;     // [sequence_count + 1]
  const std::int32_t* first_position;  // [sequence_count]
  std::int64_t max_new_tokens;         // no sequence has more tokens in this step; 1: every one decodes
  std::int64_t max_rows;               // no sequence has more rows after this step
};

// One layer of one cache, for the sequences of one step. Offsets are in elements and int64: a pool passes 2^31
// elements. Address of element d of head h at logical row r (r = position, or position % ring_rows when ring_rows > 0):
//   keys + block_table[s * table_stride + r / block_rows] * block_stride + (r % block_rows) * row_stride + h *
//   head_stride + d
// The shared form (key_channels > 0) is for layers whose key is their value times a weight of each channel, of which
// some pairs are then turned: only those are stored beside the value. A row of a head is head_dim elements of the value
// and key_channels of the key behind them, so keys = values + head_dim and both have the same strides. Element d of a
// key is channel d below key_channels / 2, and channel head_dim / 2 + d - key_channels / 2 from there on.
struct KvView {
  std::uint32_t size;
  std::uint32_t reserved;
  KvLayout layout;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t key_channels;  // 0: a key has head_dim elements
  void* keys;
  void* values;
  float* key_scales;  // null unless layout.scales says otherwise
  float* value_scales;
  std::int64_t block_stride;
  std::int64_t row_stride;
  std::int64_t head_stride;
  std::int64_t scale_block_stride;
  std::int64_t scale_row_stride;
  std::int64_t scale_head_stride;
  const std::int32_t* block_table;  // [sequence_count, table_stride]; -1: not resident (out of the window). In host
                                    // memory as the cache gives it, in device memory as an attention kernel gets it
  std::int64_t table_stride;
  std::int64_t ring_rows;  // 0 unless addressing is ring
};

}  // namespace facet::abi
