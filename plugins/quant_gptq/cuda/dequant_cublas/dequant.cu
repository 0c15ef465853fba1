#include "quant_gptq/cuda/dequant_cublas/dequant.h"

#include <cuda_fp16.h>

#include "quant_gptq/cuda/device/ptx.cuh"

namespace facet::linear {

namespace {

constexpr int kWarps = 8;
constexpr int kRowBytes = kChunkInputs * 2 + 16;  // padded, so that the 8 rows of a store hit different banks

struct DequantArgs {
  Rows32 shape;
  const unsigned char* packed;
  int first_unit;
  int units;
  long long up_offset;
  __nv_bfloat16* out;
  long long stride;
};

__device__ __forceinline__ std::uint32_t pair_of(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// One warp takes one tile of a chunk: 16 rows of 128 inputs, through shared memory, so that rows leave in 256 bytes.
__global__ void __launch_bounds__(kWarps * 32) dequantize(const __grid_constant__ DequantArgs a) {
  __shared__ __align__(16) unsigned char rows[kWarps][16 * kRowBytes];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int g = lane >> 2;
  const int t = lane & 3;
  const Rows32& shape = a.shape;
  launch_dependents();
  wait_for_inputs();  // the rows that this writes may still be read by the product before it
  const float factor = *reinterpret_cast<const float*>(a.packed);
  const long long tiles = 2LL * a.units * shape.chunks;
  const int group = kChunkInputs / shape.segments;
  const int mean = shape.bits == 4 ? 8 : 128;
  for (long long index = static_cast<long long>(blockIdx.x) * kWarps + warp; index < tiles;
       index += static_cast<long long>(gridDim.x) * kWarps) {
    const int tile = static_cast<int>(index & 1);
    const int chunk = static_cast<int>((index >> 1) % shape.chunks);
    const int unit = static_cast<int>((index >> 1) / shape.chunks);
    const unsigned char* data =
        a.packed + kHeaderBytes +
        (static_cast<long long>(a.first_unit + unit) * shape.chunks + chunk) * shape.chunk_bytes;
    const auto* codes = reinterpret_cast<const uint4*>(data + tile * shape.code_bytes / 2);
    const auto* scales = reinterpret_cast<const __half2*>(data + shape.code_bytes);
    const unsigned char* zeros = data + shape.code_bytes + shape.segments * kUnitRows * 2;
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      const int segment = 16 * s / group;
      const int slot = segment * 16 + g * 2 + tile;  // pairs of rows g, g+8
      const float2 scale = __half22float2(scales[slot]);
      const int zero_low = shape.asymmetric != 0 ? zeros[2 * slot] : mean;
      const int zero_high = shape.asymmetric != 0 ? zeros[2 * slot + 1] : mean;
      std::uint32_t low;  // codes of row g as bytes, inputs 2t, 2t+8, 2t+1, 2t+9
      std::uint32_t high;
      if (shape.bits == 4) {
        const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(codes + (s / 4) * 32 + lane)[s % 4];
        low = word & 0x0f0f0f0fu;
        high = (word >> 4) & 0x0f0f0f0fu;
      } else {
        const uint2 words = reinterpret_cast<const uint2*>(codes + (s / 2) * 32 + lane)[s % 2];
        low = words.x;
        high = words.y;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t word = half == 0 ? low : high;
        const int zero = half == 0 ? zero_low : zero_high;
        const float by = (half == 0 ? scale.x : scale.y) * factor;
        const auto value = [&](int byte) {
          return static_cast<float>(static_cast<int>((word >> (8 * byte)) & 255u) - zero) * by;
        };
        auto* target = reinterpret_cast<std::uint32_t*>(rows[warp] + (g + 8 * half) * kRowBytes + (16 * s + 2 * t) * 2);
        target[0] = pair_of(value(0), value(2));
        target[4] = pair_of(value(1), value(3));
      }
    }
    __syncwarp();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const int row = 2 * step + lane / 16;
      const int column = chunk * kChunkInputs + lane % 16 * 8;
      const long long at = shape.gate != 0 ? 16LL * unit + row + (tile != 0 ? a.up_offset : 0)
                                           : static_cast<long long>(kUnitRows) * unit + 16 * tile + row;
      const long long inside = shape.gate != 0
                                   ? 16LL * (a.first_unit + unit) + row
                                   : static_cast<long long>(kUnitRows) * (a.first_unit + unit) + 16 * tile + row;
      const long long limit = shape.gate != 0 ? shape.out_features / 2 : shape.out_features;
      if (inside < limit && column < a.stride)
        *reinterpret_cast<uint4*>(a.out + at * a.stride + column) =
            *reinterpret_cast<const uint4*>(rows[warp] + row * kRowBytes + lane % 16 * 16);
    }
    __syncwarp();
  }
}

}  // namespace

cudaError_t dequantize_units(const Rows32& shape, const void* packed, int first_unit, int units, long long up_offset,
                             void* out, long long stride, cudaStream_t stream) {
  const DequantArgs args{shape,     static_cast<const unsigned char*>(packed), first_unit, units,
                         up_offset, static_cast<__nv_bfloat16*>(out),          stride};
  const long long tiles = 2LL * units * shape.chunks;
  const long long blocks = (tiles + kWarps - 1) / kWarps;
  constexpr long long kMostBlocks = 132 * 6;  // what fits a large device at a time
  dequantize<<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kWarps * 32, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace facet::linear
