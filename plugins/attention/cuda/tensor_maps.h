// Descriptions of a KV view for the tensor copy engine: boxes of 64 elements by up to 64 rows of one head of one block.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace facet::attention::cuda {

struct TensorMaps {
  CUtensorMap keys;
  CUtensorMap values;
};

struct TensorView {
  const void* keys;
  const void* values;
  std::int64_t key_width, value_width;  // elements of a row of a head
  std::int64_t block_rows, kv_heads;
  std::int64_t block_stride, row_stride, head_stride;  // elements of bf16
  std::int32_t box_rows;
};

// Rows of a box that divides a tile of `tile_rows` and never straddles two blocks of `block_rows`: the whole tile, or
// for pages its half, quarter or third, whatever divides both; 0: no multiple of 16 does.
std::int32_t tensor_box_rows(bool paged, std::int64_t block_rows, std::int32_t tile_rows);

// Throws sdk::Failure when the driver cannot describe tensors.
void require_tensor_maps();

// Host arithmetic only. Throws sdk::Failure when the driver refuses the shape.
TensorMaps make_tensor_maps(const TensorView& view);

}  // namespace facet::attention::cuda
