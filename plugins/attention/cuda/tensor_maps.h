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
  std::int64_t head_dim, block_rows, kv_heads;
  std::int64_t block_stride, row_stride, head_stride;  // elements of bf16
  std::int32_t box_rows;
};

// Rows of a box that never straddles two blocks of `block_rows`: 64, or for small pages what divides them; 0: none
// does.
std::int32_t tensor_box_rows(bool paged, std::int64_t block_rows);

// Throws sdk::Failure when the driver cannot describe tensors.
void require_tensor_maps();

// Host arithmetic only. Throws sdk::Failure when the driver refuses the shape.
TensorMaps make_tensor_maps(const TensorView& view);

}  // namespace facet::attention::cuda
