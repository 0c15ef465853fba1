#include "quant_gptq/cuda/dequant_cublas/dequant.h"

#include "quant_gptq/cuda/w4a16_wgmma/codes.cuh"

namespace facet::linear {

namespace {

constexpr int kWarps = 8;
template <int BITS>
constexpr int kBlocks = BITS == 4 ? 6 : 5;        // of a multiprocessor at a time, as registers and shared memory allow
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

// A lane's share of a tile of a chunk as it lies in memory; pairs of rows g and g+8.
template <int BITS, int SEGMENTS>
struct Tile {
  uint4 codes[kCodeLoads<BITS, 8>];
  __half2 scales[SEGMENTS];
  std::uint32_t zeros[SEGMENTS];  // two bytes
};

template <int BITS, int SEGMENTS>
__device__ __forceinline__ Tile<BITS, SEGMENTS> load_tile(const unsigned char* chunk, bool asymmetric, int tile,
                                                          int lane) {
  constexpr int kCodeBytes = kUnitRows * kChunkInputs * BITS / 8;
  Tile<BITS, SEGMENTS> t;
  const auto* codes = reinterpret_cast<const uint4*>(chunk + tile * kCodeBytes / 2) + lane;
#pragma unroll
  for (int i = 0; i < kCodeLoads<BITS, 8>; ++i) t.codes[i] = __ldcs(codes + i * 32);  // nobody reads them again soon
  const int slot = (lane >> 2) * 2 + tile;
  const auto* scales = reinterpret_cast<const __half2*>(chunk + kCodeBytes) + slot;
  const auto* zeros = reinterpret_cast<const std::uint16_t*>(chunk + kCodeBytes + SEGMENTS * kUnitRows * 2) + slot;
#pragma unroll
  for (int i = 0; i < SEGMENTS; ++i) {
    t.scales[i] = scales[i * 16];
    t.zeros[i] = asymmetric ? zeros[i * 16] : BITS == 4 ? 0x0808u : 0x8080u;
  }
  return t;
}

// What turns code minus zero of int4, at most 4 bits, into the weight: the scale as the sum of two bf16 numbers. Of its
// 11 bits the first number has 8 and the second 3, so the product with the second is exact and the sum is rounded once.
struct SplitScale {
  __nv_bfloat162 coarse, fine;

  __device__ explicit SplitScale(float scale) {
    coarse = __float2bfloat162_rn(scale);
    fine = __float2bfloat162_rn(scale - __low2float(coarse));
  }
  __device__ std::uint32_t times(std::uint32_t pair) const {
    return as_bits(__hfma2(as_bf16(pair), coarse, __hmul2(as_bf16(pair), fine)));
  }
};

// The same for int8, whose 8 bits leave a product of two bf16 numbers inexact: `zero` is what is left to subtract.
struct PlainScale {
  float scale;
  __nv_bfloat162 zero;

  __device__ std::uint32_t times(std::uint32_t pair) const {
    const std::uint32_t codes = as_bits(__hsub2(as_bf16(pair), zero));
    return as_bits(__floats2bfloat162_rn(low_bf16(codes) * scale, high_bf16(codes) * scale));
  }
};

// Four 8 by 8 matrices of bf16 to shared memory; the address is that of row lane % 8 of matrix lane / 8.
__device__ __forceinline__ void store_matrices(std::uint32_t address, const std::uint32_t (&a)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a[0]), "r"(a[1]),
               "r"(a[2]), "r"(a[3])
               : "memory");
}

// The weights of one step of 16 inputs: a[r] belongs to row g for even r, to row g+8 for odd r.
template <int BITS, int SEGMENTS>
__device__ __forceinline__ void unpack_segment(const Tile<BITS, SEGMENTS>& t, int segment, float factor,
                                               std::uint32_t target) {
  const float2 scale = __half22float2(t.scales[segment]);
  const std::uint32_t zeros = t.zeros[segment];
#pragma unroll
  for (int i = 0; i < 8 / SEGMENTS; ++i) {
    const int s = segment * (8 / SEGMENTS) + i;
    std::uint32_t a[4];
    if constexpr (BITS == 4) {
      const SplitScale by[2] = {SplitScale(scale.x * factor), SplitScale(scale.y * factor)};
      std::uint32_t zero[2];
      zero_pairs(zeros, zero);
      const uint4& quad = t.codes[s / 4];
      operand_int4(s % 4 == 0 ? quad.x : s % 4 == 1 ? quad.y : s % 4 == 2 ? quad.z : quad.w, zero, a);
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r] = by[r & 1].times(a[r]);
    } else {
      const auto rest = [&](std::uint32_t zero) { return __float2bfloat162_rn(static_cast<float>(zero & 255u) - 128); };
      const PlainScale by[2] = {{scale.x * factor, rest(zeros)}, {scale.y * factor, rest(zeros >> 8)}};
      const uint4& quad = t.codes[s / 2];
      operand_int8(s % 2 == 0 ? quad.x : quad.z, s % 2 == 0 ? quad.y : quad.w, a);
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r] = by[r & 1].times(a[r]);
    }
    store_matrices(target + s * 32, a);
  }
}

// Where the rows of a tile go, and how many of them the matrix has.
struct Rows {
  long long first;
  int known;

  __device__ Rows(const DequantArgs& a, int unit, int tile) {
    const bool gate = a.shape.gate != 0;
    const int per_unit = gate ? kUnitRows / 2 : kUnitRows;
    const int inside = gate || tile == 0 ? 0 : kUnitRows / 2;
    first = static_cast<long long>(unit) * per_unit + (gate && tile != 0 ? a.up_offset : inside);
    known = static_cast<int>(gate ? a.shape.out_features / 2 : a.shape.out_features) -
            (a.first_unit + unit) * per_unit - inside;
  }
};

// 16 staged rows of 128 inputs to the matrix, 256 bytes a row.
__device__ __forceinline__ void store_rows(const unsigned char* staged, int lane, __nv_bfloat16* out, long long stride,
                                           int known_rows, long long known_inputs) {
  const int row = lane / 16;
  const int input = lane % 16 * 8;
  const unsigned char* source = staged + row * kRowBytes + input * 2;
  __nv_bfloat16* target = out + row * stride + input;
  if (known_rows >= 16 && known_inputs >= kChunkInputs) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      *reinterpret_cast<uint4*>(target + 2 * i * stride) = *reinterpret_cast<const uint4*>(source + 2 * i * kRowBytes);
    return;
  }
  for (int i = 0; i < 8; ++i)
    if (2 * i + row < known_rows && input < known_inputs)
      *reinterpret_cast<uint4*>(target + 2 * i * stride) = *reinterpret_cast<const uint4*>(source + 2 * i * kRowBytes);
}

// A warp takes one tile of a chunk, 16 rows of 128 inputs, through shared memory. Blocks take their tiles in order, so
// that what is written at a time lies together, which a grid that stays and takes every n-th tile does not keep up.
// Weights are constant, so they are asked for before the launch before this one has ended.
template <int BITS, int SEGMENTS>
__global__ void __launch_bounds__(kWarps * 32, kBlocks<BITS>) dequantize(const __grid_constant__ DequantArgs a) {
  __shared__ __align__(16) unsigned char staged[kWarps][16 * kRowBytes];
  let_successor_begin();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int tile = warp & 1;
  const int index = static_cast<int>(blockIdx.x) * (kWarps / 2) + warp / 2;  // unit * chunks + chunk
  const int unit = index / a.shape.chunks;
  const int chunk = index - unit * a.shape.chunks;
  const bool known = unit < a.units;
  float factor = 0;
  Tile<BITS, SEGMENTS> packed;
  if (known) {
    factor = *reinterpret_cast<const float*>(a.packed);
    const long long before = static_cast<long long>(a.first_unit) * a.shape.chunks + index;
    packed = load_tile<BITS, SEGMENTS>(a.packed + kHeaderBytes + before * a.shape.chunk_bytes, a.shape.asymmetric != 0,
                                       tile, lane);
  }
  wait_for_predecessor();  // the rows that this writes may still be read by the product before it
  if (!known) return;
  // Matrices of a store: rows 0 and 8, then the same 8 inputs further.
  const std::uint32_t target = shared_address(staged[warp]) + (lane & 15) * kRowBytes + (lane >> 4) * 16;
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) unpack_segment(packed, segment, factor, target);
  __syncwarp();
  const Rows rows(a, unit, tile);
  const int column = chunk * kChunkInputs;
  store_rows(staged[warp], lane, a.out + rows.first * a.stride + column, a.stride, rows.known, a.stride - column);
}

auto kernel_of(int bits, int segments) {
  if (bits == 4) return segments == 1 ? dequantize<4, 1> : segments == 2 ? dequantize<4, 2> : dequantize<4, 4>;
  return segments == 1 ? dequantize<8, 1> : segments == 2 ? dequantize<8, 2> : dequantize<8, 4>;
}

}  // namespace

cudaError_t dequantize_units(const Rows32& shape, const void* packed, int first_unit, int units, long long up_offset,
                             void* out, long long stride, cudaStream_t stream) {
  const DequantArgs args{shape,     static_cast<const unsigned char*>(packed), first_unit, units,
                         up_offset, static_cast<__nv_bfloat16*>(out),          stride};
  const long long blocks = (2LL * units * shape.chunks + kWarps - 1) / kWarps;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kWarps * 32);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel_of(shape.bits, shape.segments), args);
}

}  // namespace facet::linear
