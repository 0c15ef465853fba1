#include "attention/cuda/tensor_maps.h"

#include <cuda_runtime_api.h>

#include "facet/sdk/failure.h"

namespace facet::attention::cuda {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Through the runtime, so that the plugin loads on machines without a driver.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    sdk::fail(abi::Status::unavailable, "the driver has no cuTensorMapEncodeTiled: ", cudaGetErrorString(error));
  }
  return reinterpret_cast<Encode>(function);
}

Encode encode_function() {
  static const Encode encode = find_encode();
  return encode;
}

CUtensorMap make_map(const TensorView& view, const void* pool, std::int64_t width) {
  // The number of blocks is the cache's affair; block tables name only real ones.
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(view.block_rows),
                              static_cast<cuuint64_t>(view.kv_heads), cuuint64_t{1} << 31};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(view.row_stride) * 2,
                                static_cast<cuuint64_t>(view.head_stride) * 2,
                                static_cast<cuuint64_t>(view.block_stride) * 2};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(view.box_rows), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(pool), sizes, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    sdk::fail(abi::Status::failed, "cuTensorMapEncodeTiled refuses blocks of ", view.block_rows, " rows and strides ",
              view.block_stride, " a block, ", view.row_stride, " a row, ", view.head_stride, " a head: error ",
              static_cast<int>(result));
  }
  return map;
}

}  // namespace

std::int32_t tensor_box_rows(bool paged, std::int64_t block_rows, std::int32_t tile_rows) {
  if (!paged) return tile_rows;
  for (std::int32_t rows = tile_rows; rows > 0; rows -= 16) {
    if (tile_rows % rows == 0 && block_rows % rows == 0) return rows;
  }
  return 0;
}

void require_tensor_maps() {
  encode_function();
}

TensorMaps make_tensor_maps(const TensorView& view) {
  return {make_map(view, view.keys, view.key_width), make_map(view, view.values, view.value_width)};
}

}  // namespace facet::attention::cuda
