// Launches for 5 to 64 rows: activations to operand order, then the products.
#include <algorithm>

#include "quant_gptq/cuda/w4a16_stream/rows_kernel.cuh"

namespace facet::linear {

namespace {

// Row tiles that a kernel is compiled for.
int compiled_tiles(int rows) {
  return rows <= 8 ? 1 : rows <= 16 ? 2 : rows <= 32 ? 4 : 8;
}

RowsKernel kernel_of(const Rows32& shape, int tiles) {
  if (tiles == 1) return rows_kernel_1(shape);
  if (tiles == 2) return rows_kernel_2(shape);
  return tiles == 4 ? rows_kernel_4(shape) : rows_kernel_8(shape);
}

int stage_bytes(const Rows32& shape, int tiles) {
  return kRowsWarps * shape.chunk_bytes + tiles * kOperandBytes;
}

// 16 bytes a thread: for column n = lane / 4 and t = lane % 4 of a tile the pairs of inputs 2t, 2t+8 of steps 2q and
// 2q + 1 of a chunk.
__global__ void __launch_bounds__(128) order_operands(const __grid_constant__ RowsArgs a) {
  launch_dependents();
  wait_for_inputs();
  const int q = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int chunk = blockIdx.x;
  const int tile = blockIdx.y;
  const int row = tile * kTileColumns + lane / 4;
  const long long inputs = a.stream.shape.in_features;
  const auto* x = static_cast<const unsigned short*>(a.stream.x) + static_cast<long long>(row) * a.stream.x_stride;
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const long long k = static_cast<long long>(chunk) * kChunkInputs + (2 * q + i / 2) * 16 + lane % 4 * 2 + i % 2 * 8;
    words[i] = 0;
    if (row < a.stream.rows && k < inputs) words[i] = x[k];
    if (row < a.stream.rows && k + 1 < inputs) words[i] |= static_cast<std::uint32_t>(x[k + 1]) << 16;
  }
  auto* target =
      reinterpret_cast<uint4*>(a.operands + (static_cast<long long>(chunk) * a.tiles + tile) * kOperandBytes);
  target[q * 32 + lane] = make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace

unsigned long long rows_workspace_bytes(const Rows32& shape, int max_rows) {
  return static_cast<unsigned long long>(shape.chunks) * static_cast<unsigned long long>(compiled_tiles(max_rows)) *
         kOperandBytes;
}

bool rows_fit(const Rows32& shape, int max_rows) {
  constexpr int kSharedPerBlock = 227 << 10;
  const int stages = (kSharedPerBlock - kRowsBarrierBytes) / stage_bytes(shape, compiled_tiles(max_rows));
  return stages >= 2;
}

cudaError_t rows_prepare(const Rows32& shape) {
  for (const int tiles : {1, 2, 4, 8}) {
    const void* kernel = reinterpret_cast<const void*>(kernel_of(shape, tiles));
    const cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10);
    if (result != cudaSuccess) return result;
  }
  return cudaSuccess;
}

cudaError_t rows_launch(const StreamArgs& stream_args, void* workspace, int multiprocessors, bool dependent,
                        cudaStream_t stream) {
  RowsArgs args{};
  args.stream = stream_args;
  args.operands = static_cast<unsigned char*>(workspace);
  args.tiles = compiled_tiles(stream_args.rows);
  const Rows32& shape = stream_args.shape;
  const int groups = (shape.units + kRowsWarps - 1) / kRowsWarps;
  // As many blocks as fill the device once, each with at least two chunks.
  int splits = 8;
  while (splits > 1 && (groups * splits > multiprocessors || shape.chunks < 2 * splits)) splits /= 2;
  // Where registers let two blocks share a multiprocessor, the next launch stages its weights beside this one.
  const int shared_limit = args.tiles <= 2 ? 113 << 10 : 227 << 10;
  const int stage = stage_bytes(shape, args.tiles);
  const int sums = args.tiles * kTileColumns * kSumStride * 4;
  args.stages = std::clamp((shared_limit - kRowsBarrierBytes) / stage, 2, kRowsMaxStages);
  const int shared = kRowsBarrierBytes + std::max(args.stages * stage, sums);

  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = dependent ? 1 : 0;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  config.gridDim = dim3(static_cast<unsigned>(shape.chunks), static_cast<unsigned>(args.tiles));
  config.blockDim = dim3(128);
  cudaError_t result = cudaLaunchKernelEx(&config, order_operands, args);
  if (result != cudaSuccess) return result;
  config.numAttrs = 2;
  config.gridDim = dim3(static_cast<unsigned>(groups * splits));
  config.blockDim = dim3(kRowsThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  return cudaLaunchKernelEx(&config, kernel_of(shape, args.tiles), args);
}

}  // namespace facet::linear
