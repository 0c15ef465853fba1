#include "quant_gptq/cuda/device/tensor_map.h"

#include <cuda_runtime_api.h>

#include "facet/sdk/failure.h"

namespace facet::linear {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Through the runtime, so that the plugin loads on machines without a driver.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess)
    sdk::fail(abi::Status::unavailable, "the driver has no cuTensorMapEncodeTiled: ", cudaGetErrorString(error));
  return reinterpret_cast<Encode>(function);
}

Encode encode_function() {
  static const Encode encode = find_encode();
  return encode;
}

}  // namespace

void require_tensor_maps() {
  encode_function();
}

bool tensor_map_fits(const void* data, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}

namespace {

// Sizes and boxes of `dimensions`, strides in bytes of all but the first.
CUtensorMap encode(const void* data, cuuint32_t dimensions, const cuuint64_t* sizes, const cuuint64_t* strides,
                   const cuuint32_t* box) {
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, dimensions, const_cast<void*>(data), sizes, strides,
                        box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    sdk::fail(abi::Status::failed, "cuTensorMapEncodeTiled refuses ", sizes[1], " rows with a stride of ", strides[0],
              " bytes, box of ", box[1], " rows: error ", static_cast<int>(result));
  return map;
}

}  // namespace

CUtensorMap make_tensor_map(const void* data, std::int64_t rows, std::int64_t inputs, std::int64_t stride,
                            int box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(inputs), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows)};
  return encode(data, 2, sizes, strides, box);
}

CUtensorMap make_block_map(const void* data, std::int64_t rows, std::int64_t inputs, std::int64_t stride, int box_rows,
                           int box_blocks) {
  const cuuint64_t sizes[] = {64, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(inputs / 64)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride) * 2, 128};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_blocks)};
  return encode(data, 3, sizes, strides, box);
}

}  // namespace facet::linear
