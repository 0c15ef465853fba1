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
  Round() = default;
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

// Four values of each lane brought together over LANES neighbours: quarter i of them gets value i. N times side by
// side, as a shuffle takes its time.
template <int LANES, int N, typename T, typename Operation>
__device__ __forceinline__ void fold4(const T (&v)[N][4], int lane, Operation operation, T (&result)[N]) {
  const bool high = (lane & (LANES / 2)) != 0;
  const bool odd = (lane & (LANES / 4)) != 0;
  T half[N][2];
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      half[n][i] =
          operation(high ? v[n][2 + i] : v[n][i], __shfl_xor_sync(~0u, high ? v[n][i] : v[n][2 + i], LANES / 2));
  }
#pragma unroll
  for (int n = 0; n < N; ++n)
    result[n] =
        operation(odd ? half[n][1] : half[n][0], __shfl_xor_sync(~0u, odd ? half[n][0] : half[n][1], LANES / 4));
#pragma unroll
  for (int offset = LANES / 8; offset > 0; offset /= 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) result[n] = operation(result[n], __shfl_xor_sync(~0u, result[n], offset));
  }
}
template <int LANES, typename T, typename Operation>
__device__ __forceinline__ T fold4(const T (&v)[4], int lane, Operation operation) {
  const T one[1][4] = {{v[0], v[1], v[2], v[3]}};
  T result[1];
  fold4<LANES>(one, lane, operation, result);
  return result[0];
}

// Digits of a lane's inputs of N rounds to shared memory, with what turns sums of a column into numbers. `at`: chunk
// and row of each quarter of `v`. Called by all lanes. Shuffles stay in the order in which they are written, so those
// that do not wait for each other come side by side.
template <int SEGMENTS, int ROWS, int N, typename At>
__device__ __forceinline__ void quantize_rounds(const float (&v)[N][16], const At (&at)[N], int chunks,
                                                const GemvMemory& m) {
  constexpr int kLanes = 32 / SEGMENTS;  // of a segment
  const int lane = at[0].lane;
  unsigned bits[N][4], largest[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < kGemvRoundChunks; ++i)  // as bits, NaN and infinity are larger than any number
      bits[n][i] = max(max(__float_as_uint(fabsf(v[n][4 * i])), __float_as_uint(fabsf(v[n][4 * i + 1]))),
                       max(__float_as_uint(fabsf(v[n][4 * i + 2])), __float_as_uint(fabsf(v[n][4 * i + 3]))));
  }
  fold4<kLanes>(bits, lane, Larger{}, largest);
  // Exponent of the largest; that of the step is kBits - 1 below. NaN and infinity pass on as NaN. What is larger than
  // any bf16 of its exponent, as inputs of a fused norm may be, counts as of the next, so that digits hold it.
  constexpr unsigned kBits = 15;
  constexpr unsigned kBelowBf16 = 0xffffu;
  float scales[N], steps[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const unsigned exponent = max((largest[n] + kBelowBf16) >> 23, kBits + 1);
    scales[n] = __uint_as_float((253 + kBits - exponent) << 23);
    steps[n] = exponent < 255 ? __uint_as_float((exponent - (kBits - 1)) << 23) : __uint_as_float(0x7fc00000u);
  }
  // A word holds inputs 2t, 2t+8, 2t+1, 2t+9 of a k16 step, which four lanes have. Lanes q and q+2 of them swap two
  // inputs each: then q < 2 has what word 2q takes, in order, and the other word 2(q-2)+1, own inputs second.
  const int s = lane >> 2;
  const int q = lane & 3;
  const bool upper = q >= 2;
  const unsigned low_bytes = upper ? 0x1504u : 0x5140u;
  const unsigned high_bytes = upper ? 0x3726u : 0x7362u;
  std::uint32_t* const word = m.digits + (s >> 2) * m.half + (2 * (q & 1) + (q >> 1)) * 4 + (s & 3);
  int sums[N][4], both[N];
#pragma unroll
  for (int i = 0; i < kGemvRoundChunks; ++i) {
    float scale[N];
    unsigned own[N], other[N];
#pragma unroll
    for (int n = 0; n < N; ++n) scale[n] = __shfl_sync(~0u, scales[n], (lane & -kLanes) + i * (kLanes / 4));
#pragma unroll
    for (int n = 0; n < N; ++n) {
      // Adding 0x8080 makes the two digits unsigned with an offset of 128, which flipping their top bits takes away.
      unsigned fixed[4];
#pragma unroll
      for (int k = 0; k < 4; ++k)  // 32639: the largest with digits -128..127
        fixed[k] = __float_as_uint(fminf(v[n][4 * i + k] * scale[n], 32639.0f) + (kMagic + 32896.0f));
      const unsigned first = __byte_perm(fixed[0], fixed[1], 0x5140);  // low digits, then second digits
      const unsigned second = __byte_perm(fixed[2], fixed[3], 0x5140);
      own[n] = upper ? second : first;
      other[n] = __shfl_xor_sync(~0u, upper ? first : second, 2);
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const unsigned low = __byte_perm(own[n], other[n], low_bytes) ^ 0x80808080u;
      const unsigned high = __byte_perm(own[n], other[n], high_bytes) ^ 0x80808080u;
      if (at[n].chunk_of(i) < chunks) {
        std::uint32_t* target = word + at[n].chunk_of(i) * gemv_half_words<ROWS>() + at[n].row_of(i) * 16;
        target[0] = low;
        target[ROWS * 16] = high;
      }
      // Sums of 128 digits fit 16 bits.
      sums[n][i] = __dp4a(static_cast<int>(low), 0x01010101, 0) + __dp4a(static_cast<int>(high), 0x01010101, 0) * 65536;
    }
  }
  fold4<kLanes>(sums, lane, Sum{}, both);
  const int quarter = lane % kLanes / (kLanes / 4);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int chunk = at[n].chunk_of(quarter);
    const int row = at[n].row_of(quarter);
    if (lane % (kLanes / 4) != 0 || chunk >= chunks) continue;
    const int low_sum = static_cast<short>(both[n]);
    const int high_sum = (both[n] - low_sum) >> 16;
    auto* pairs = reinterpret_cast<float2*>(m.pairs + (chunk * SEGMENTS + lane / kLanes) * ROWS);
    pairs[row] = make_float2(steps[n], steps[n] * static_cast<float>(low_sum));
    pairs[ROWS + row] = make_float2(256.0f * steps[n], 256.0f * steps[n] * static_cast<float>(high_sum));
  }
}
template <int SEGMENTS, int ROWS, typename At>
__device__ __forceinline__ void quantize_round(const float (&v)[16], const At& at, int chunks, const GemvMemory& m) {
  const float(&one)[1][16] = *reinterpret_cast<const float(*)[1][16]>(&v);
  const At places[1] = {at};
  quantize_rounds<SEGMENTS, ROWS>(one, places, chunks, m);
}

}  // namespace facet::linear
