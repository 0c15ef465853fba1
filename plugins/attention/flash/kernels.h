// The arithmetic of attention/flash, once for each instruction set. A kernel file includes only this header, its
// intrinsics and kernel_body.inc, so that no inline function compiled with wider instructions can be picked by the
// linker for a caller on an older processor.
#pragma once

#include <cstdint>

namespace facet::attention {

// Bounds the pointer tables that a kernel keeps on its stack.
constexpr std::int64_t kMaxKeyBlock = 256;

enum class KvElement : std::int32_t { f32, bf16, i8 };

// Running softmax of a set of rows: true weights are exp(score - max), sums are relative to max.
struct SoftmaxState {
  float* max;   // [rows], -infinity while a row has seen no key
  float* sum;   // [rows]
  float* rows;  // [rows, stride], weighted sums of the values
};

// Packed query rows against one block of keys. Positions are counted from the start of the block.
struct BlockTask {
  std::int64_t row_count;
  std::int64_t head_dim;
  std::int64_t key_channels;  // 0, or those of keys in the shared form (abi::KvView), which is always widened
  std::int64_t stride;        // floats between packed rows: head_dim rounded up to 16, the rest is zero
  std::int64_t wide_stride;   // floats between widened rows; a power of two would crowd a few sets of the cache
  std::int64_t key_block;     // keys of a full block, a multiple of 16
  std::int32_t key_begin;     // keys any row sees: [key_begin, key_end); nothing else is read
  std::int32_t key_end;
  const std::int32_t* row_begin;  // [rows] keys each row sees
  const std::int32_t* row_end;
  const float* queries;          // [rows, stride], times the scale of the problem
  const void* const* keys;       // [key_block] first element of each row
  const void* const* values;     // [key_block]
  const void* const* next_keys;  // [key_block] keys to bring near for the next block; null: there is none
  std::int64_t element_bytes;    // of keys and values
  const float* key_scales;       // [key_block]; i8 only
  const float* value_scales;     // [key_block]; i8 only
  KvElement element;
  bool widen;          // copy keys and values to fp32 first: pays when many rows share them
  float* scores;       // [rows, key_block] scratch
  float* wide_keys;    // [key_block, wide_stride] scratch
  float* wide_values;  // [key_block, wide_stride] scratch
  SoftmaxState state;
};

struct Kernels {
  const char* name;
  // Adds the keys of one block to the state of every row. A row's bits depend only on its query, on the keys it sees
  // and on where they lie in the block, never on the other rows or on `widen`.
  void (*attend_block)(const BlockTask& task);
  // total += part, row by row. Rows of `part` that saw nothing change nothing.
  void (*fold)(SoftmaxState total, SoftmaxState part, std::int64_t row_count, std::int64_t stride);
  // output[0 .. head_dim) = row / sum; zeros when the row saw no key.
  void (*finish)(const float* row, float sum, float* output, std::int64_t head_dim);
  // out = exp(in) for in <= 0. Exact at 0, zero below -87, else within 2^-22 of the true value. count: multiple of 16.
  void (*exp)(const float* in, float* out, std::int64_t count);
};

const Kernels& generic_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

}  // namespace facet::attention
