// Activations of gemv.cuh cut into digits.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/gemv.cuh"

namespace facet::linear {

// Inputs go in rounds: a warp takes four of its chunks at a time, and a lane holds inputs 4 lane .. 4 lane + 3 of each,
// so that loads and stores of a warp are of whole lines.
inline constexpr int kGemvRoundChunks = 4;
static_assert(kGemvMaxNormInputs == kGemvWarps * kGemvRoundChunks * kChunkInputs);  // one round

struct Round {
  int chunk;  // the first; the others follow kGemvWarps on
  int lane;
  int row = 0;
  __device__ __forceinline__ Round(int round, int warp, int lane)
      : chunk(warp + round * kGemvRoundChunks * kGemvWarps), lane(lane) {}
  __device__ __forceinline__ Round of_row(int r) const {
    Round made = *this;
    made.row = r;
    return made;
  }
  __device__ __forceinline__ int chunk_of(int i) const { return chunk + i * kGemvWarps; }
  __device__ __forceinline__ int row_of(int) const { return row; }
  __device__ __forceinline__ int first_input(int i) const { return chunk_of(i) * kChunkInputs + lane * 4; }
};

struct Larger {
  __device__ __forceinline__ unsigned operator()(unsigned a, unsigned b) const { return max(a, b); }
};
struct Sum {
  __device__ __forceinline__ int operator()(int a, int b) const { return a + b; }
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// Four values of each lane brought together over LANES neighbours: quarter i of them gets value i.
template <int LANES, typename T, typename Operation>
__device__ __forceinline__ T fold4(const T (&v)[4], int lane, Operation operation) {
  const bool high = (lane & (LANES / 2)) != 0;
  const T first = operation(high ? v[2] : v[0], __shfl_xor_sync(~0u, high ? v[0] : v[2], LANES / 2));
  const T second = operation(high ? v[3] : v[1], __shfl_xor_sync(~0u, high ? v[1] : v[3], LANES / 2));
  const bool odd = (lane & (LANES / 4)) != 0;
  T result = operation(odd ? second : first, __shfl_xor_sync(~0u, odd ? first : second, LANES / 4));
#pragma unroll
  for (int offset = LANES / 8; offset > 0; offset /= 2)
    result = operation(result, __shfl_xor_sync(~0u, result, offset));
  return result;
}

// Digits of a lane's inputs to shared memory, with what turns sums of a column into numbers. `at`: chunk and row of
// each quarter of `v`. Called by all lanes.
template <int SEGMENTS, int ROWS, typename At>
__device__ __forceinline__ void quantize_round(const float (&v)[16], const At& at, int chunks, const GemvMemory& m) {
  constexpr int kLanes = 32 / SEGMENTS;  // of a segment
  const int lane = at.lane;
  unsigned bits[4];
#pragma unroll
  for (int i = 0; i < kGemvRoundChunks; ++i)  // as bits, NaN and infinity are larger than any number
    bits[i] = max(max(__float_as_uint(fabsf(v[4 * i])), __float_as_uint(fabsf(v[4 * i + 1]))),
                  max(__float_as_uint(fabsf(v[4 * i + 2])), __float_as_uint(fabsf(v[4 * i + 3]))));
  // Exponent of the largest; that of the step is kBits - 1 below. NaN and infinity pass on as NaN. What is larger than
  // any bf16 of its exponent, as inputs of a fused norm may be, counts as of the next, so that digits hold it.
  constexpr unsigned kBits = 15;
  constexpr unsigned kBelowBf16 = 0xffffu;
  const unsigned exponent = max((fold4<kLanes>(bits, lane, Larger{}) + kBelowBf16) >> 23, kBits + 1);
  const float scale = __uint_as_float((253 + kBits - exponent) << 23);
  const float step = exponent < 255 ? __uint_as_float((exponent - (kBits - 1)) << 23) : __uint_as_float(0x7fc00000u);
  // A word holds inputs 2t, 2t+8, 2t+1, 2t+9 of a k16 step, which four lanes have. Lanes q and q+2 of them swap two
  // inputs each: then q < 2 has what word 2q takes, in order, and the other word 2(q-2)+1, own inputs second.
  const int s = lane >> 2;
  const int q = lane & 3;
  const bool upper = q >= 2;
  const unsigned low_bytes = upper ? 0x1504u : 0x5140u;
  const unsigned high_bytes = upper ? 0x3726u : 0x7362u;
  std::uint32_t* const word = m.digits + (s >> 2) * m.half + (2 * (q & 1) + (q >> 1)) * 4 + (s & 3);
  int sums[4];
#pragma unroll
  for (int i = 0; i < kGemvRoundChunks; ++i) {
    const float own_scale = __shfl_sync(~0u, scale, (lane & -kLanes) + i * (kLanes / 4));
    // Adding 0x8080 makes the two digits unsigned with an offset of 128, which flipping their top bits takes away.
    unsigned fixed[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)  // 32639: the largest with digits -128..127
      fixed[k] = __float_as_uint(fminf(v[4 * i + k] * own_scale, 32639.0f) + (kMagic + 32896.0f));
    const unsigned first = __byte_perm(fixed[0], fixed[1], 0x5140);  // low digits, then second digits
    const unsigned second = __byte_perm(fixed[2], fixed[3], 0x5140);
    const unsigned own = upper ? second : first;
    const unsigned other = __shfl_xor_sync(~0u, upper ? first : second, 2);
    const unsigned low = __byte_perm(own, other, low_bytes) ^ 0x80808080u;
    const unsigned high = __byte_perm(own, other, high_bytes) ^ 0x80808080u;
    if (at.chunk_of(i) < chunks) {
      std::uint32_t* target = word + at.chunk_of(i) * gemv_half_words<ROWS>() + at.row_of(i) * 16;
      target[0] = low;
      target[ROWS * 16] = high;
    }
    // Sums of 128 digits fit 16 bits.
    sums[i] = __dp4a(static_cast<int>(low), 0x01010101, 0) + __dp4a(static_cast<int>(high), 0x01010101, 0) * 65536;
  }
  const int both = fold4<kLanes>(sums, lane, Sum{});
  const int quarter = lane % kLanes / (kLanes / 4);
  const int chunk = at.chunk_of(quarter);
  const int row = at.row_of(quarter);
  if (lane % (kLanes / 4) != 0 || chunk >= chunks) return;
  const int low_sum = static_cast<short>(both);
  const int high_sum = (both - low_sum) >> 16;
  auto* pairs = reinterpret_cast<float2*>(m.pairs + (chunk * SEGMENTS + lane / kLanes) * ROWS);
  pairs[row] = make_float2(step, step * static_cast<float>(low_sum));
  pairs[ROWS + row] = make_float2(256.0f * step, 256.0f * step * static_cast<float>(high_sum));
}

}  // namespace facet::linear
