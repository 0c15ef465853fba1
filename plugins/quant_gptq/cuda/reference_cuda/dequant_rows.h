// Every weight on its own: one thread reads a code, a scale and a zero code and writes a bf16 value.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace facet::linear {

// A matrix as pack() of reference_cuda leaves it, rows without gaps.
struct PlainWeights {
  std::int64_t out_features;
  std::int64_t in_features;
  std::int64_t groups;  // of a row
  std::int64_t group_size;
  std::int64_t row_bytes;  // of codes
  int bits;                // 4 or 8
  int mean;                // zero code where zeros is null
  const std::uint8_t* codes;
  const float* scales;        // [out_features, groups]
  const std::uint8_t* zeros;  // [out_features, groups] or null
};

cudaError_t dequantize_rows(const PlainWeights& weights, void* out, std::int64_t stride, cudaStream_t stream);

}  // namespace facet::linear
