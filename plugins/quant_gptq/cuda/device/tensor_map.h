// Descriptions of a matrix for the tensor copy engine.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace facet::linear {

// Throws Failure when the driver cannot describe tensors.
void require_tensor_maps();

// Whether the engine can read rows that start at `data`, `stride` bf16 elements apart.
bool tensor_map_fits(const void* data, std::int64_t stride);

// Boxes of 64 inputs (128 bytes, swizzled) by `box_rows` rows of a bf16 matrix; what lies outside reads as zero. Host
// arithmetic only. Throws Failure when the driver refuses the shape.
CUtensorMap make_tensor_map(const void* data, std::int64_t rows, std::int64_t inputs, std::int64_t stride,
                            int box_rows);

// Boxes of `box_blocks` such boxes one after the other; for `inputs` that are a multiple of 64.
CUtensorMap make_block_map(const void* data, std::int64_t rows, std::int64_t inputs, std::int64_t stride, int box_rows,
                           int box_blocks);

}  // namespace facet::linear
