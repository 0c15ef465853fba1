// The packed form that all INT4 and INT8 CUDA kernels share, so that one copy of the weights serves decode and prefill.
//
// A header of 128 bytes holds one float, a power of two: the factor of all scales. Then come units of 32 rows of W,
// each ceil(in_features / 128) chunks of 128 inputs in a row, so that a kernel streams a unit, or any run of its
// chunks, with bulk copies. A unit is two tiles of 16 rows, A and B: rows 32u.. and 32u+16.. of W, or, where gate and
// up projections are stacked (`gate`), rows 16u.. of both halves, so that one thread holds gate and up of the same
// output. A chunk is
//
//   codes of tile A, codes of tile B, scales (fp16) [segment][g][A g, A g+8, B g, B g+8],
//   zero codes, asymmetric only (uint8), in the order of the scales
//
// with g in 0..7. Scales are stored divided by the factor; fp16 then holds scales of bf16 or fp16 origin exactly. A
// segment has one scale a row: 32, 64 or 128 inputs, the largest that divides the group; larger groups repeat theirs.
//
// Codes are in the order of the A operand of mma.m16n8k16: word (s, lane) with g = lane / 4 and t = lane % 4 belongs to
// inputs 16s + {2t, 2t+8, 2t+1, 2t+9} (s in 0..7), one byte each in that order:
//
//   int4: low nibble row g, high nibble row g+8; word index ((s / 4) * 32 + lane) * 4 + s % 4       (1024 bytes a tile)
//   int8: one word each for rows g (h = 0) and g+8 (h = 1); ((s / 2) * 32 + lane) * 4 + 2 (s % 2) + h  (2048 bytes)
//
// A 16-byte load gives a lane the fragments of four (two) k16 steps. Masking a word of int4 with 0x0f0f0f0f and
// 0xf0f0f0f0 gives operands of mma.m16n8k32 (u8), rows g+8 times 16; nibbles at bits 4r and 4r+16 are the pair of
// register r of a bf16 operand. Rows past out_features and inputs past in_features hold code 0 and scale 0.
#pragma once

#include <cstdint>

namespace facet::linear {

inline constexpr int kUnitRows = 32;
inline constexpr int kChunkInputs = 128;
inline constexpr int kHeaderBytes = 128;

struct Rows32 {
  std::int64_t out_features;
  std::int64_t in_features;
  int units;
  int chunks;    // of a unit
  int segments;  // of a chunk: 1, 2 or 4
  int bits;      // 4 or 8
  int asymmetric;
  int gate;         // units hold 16 rows of each half
  int code_bytes;   // of a chunk, both tiles
  int chunk_bytes;  // a multiple of 32
};

}  // namespace facet::linear
