// From the packed form to bf16 rows.
#pragma once

#include <cuda_runtime_api.h>

#include "quant_gptq/cuda/rows32/layout.h"

namespace facet::linear {

// Rows of units [first_unit, first_unit + units) as bf16 to `out`, row stride `stride` (a multiple of 8, at least
// in_features). The matrix row of tile row r of unit u goes to out row 32 (u - first_unit) + r, or, where the shape has
// gates, to 16 (u - first_unit) + r for gates and `up_offset` rows further for ups.
cudaError_t dequantize_units(const Rows32& shape, const void* packed, int first_unit, int units, long long up_offset,
                             void* out, long long stride, cudaStream_t stream);

}  // namespace facet::linear
