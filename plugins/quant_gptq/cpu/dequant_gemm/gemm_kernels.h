// Kernels of linear/dequant_gemm. No inline functions here: see CMakeLists.txt.
//
// A panel of blocks is unpacked kChunk inputs at a time into a tile that stays in the cache, and every row of x is
// multiplied with it. Sums go on in the output between chunks, in the order of the inputs: a row's result does not
// depend on the rows beside it.
#pragma once

#include "rows16/rows16.h"

namespace facet::linear {

// Inputs unpacked at a time, a multiple of every segment: the bf16 tile of two blocks takes 16 KiB of a 32 KiB L1, the
// fp32 tile of four 64 KiB of L2.
inline constexpr std::int64_t kChunk = 256;
inline constexpr std::int64_t kTileBytes = 64 << 10;

struct GemmTask {
  Rows16 weights;
  std::int64_t block_begin;
  std::int64_t block_end;
  std::int64_t rows;
  const void* input;  // [rows, segments * segment] float, or bf16 as round_pairs() leaves it for the bf16 kernel
  std::int64_t input_stride;
  float* output;  // [rows, out_features]
  std::int64_t output_stride;
  void* tile;  // kTileBytes, 64-byte aligned
};
using GemmKernel = void (*)(const GemmTask& task);

// (code - zero) * scale in fp32.
void gemm_generic(const GemmTask& task);
void gemm_avx2(const GemmTask& task);
void gemm_avx512(const GemmTask& task);
// code - zero in bf16, which is exact; scales are applied to the sums of each segment.
void gemm_avx512_bf16(const GemmTask& task);

}  // namespace facet::linear
