// Pages of weights to registers, and their products with the digits of the activations.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/gemv.cuh"

namespace facet::linear {

// Products of one tile of a chunk with all columns, added to acc (rows g, g+8 by columns 2t, 2t+1).
template <int BITS, int SEGMENTS, bool ASYMMETRIC>
__device__ __forceinline__ void multiply_tile(float (&acc)[4], const uint4* words, const uint4 (&b)[2],
                                              const float4 (&columns)[SEGMENTS][2], const float2 (&scales)[SEGMENTS],
                                              const float2 (&zeros)[SEGMENTS]) {
  const int magic[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
  const std::uint32_t bw[8] = {b[0].x, b[0].y, b[0].z, b[0].w, b[1].x, b[1].y, b[1].z, b[1].w};
  int sums[4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {  // 32 inputs each
    constexpr int kSteps = 4 / SEGMENTS;
    int before[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) before[e] = step % kSteps == 0 ? magic[e] : sums[e];
    if constexpr (BITS == 4) {
      const uint4 quad = words[step / 2];
      const std::uint32_t low = step % 2 == 0 ? quad.x : quad.z;
      const std::uint32_t high = step % 2 == 0 ? quad.y : quad.w;
      mma_u8s8(sums, low & 0x0f0f0f0fu, low & 0xf0f0f0f0u, high & 0x0f0f0f0fu, high & 0xf0f0f0f0u, bw[2 * step],
               bw[2 * step + 1], before);
    } else {
      const uint4 quad = words[step];
      mma_u8s8(sums, quad.x, quad.y, quad.z, quad.w, bw[2 * step], bw[2 * step + 1], before);
    }
    if (step % kSteps != kSteps - 1) continue;
    const int segment = step / kSteps;
    const float4 c0 = columns[segment][0];
    const float4 c1 = columns[segment][1];
    if constexpr (ASYMMETRIC) {
      const float z0 = zeros[segment].x;
      const float z8 = zeros[segment].y;
      acc[0] += scales[segment].x * fmaf(-z0, c0.z, fmaf(__int_as_float(sums[0]), c0.x, c0.y));
      acc[1] += scales[segment].x * fmaf(-z0, c1.z, fmaf(__int_as_float(sums[1]), c1.x, c1.y));
      acc[2] += scales[segment].y * fmaf(-z8, c0.z, fmaf(__int_as_float(sums[2]), c0.x, c0.y));
      acc[3] += scales[segment].y * fmaf(-z8, c1.z, fmaf(__int_as_float(sums[3]), c1.x, c1.y));
    } else {
      acc[0] += scales[segment].x * fmaf(__int_as_float(sums[0]), c0.x, c0.y);
      acc[1] += scales[segment].x * fmaf(__int_as_float(sums[1]), c1.x, c1.y);
      acc[2] += scales[segment].y * fmaf(__int_as_float(sums[2]), c0.x, c0.z);
      acc[3] += scales[segment].y * fmaf(__int_as_float(sums[3]), c1.x, c1.z);
    }
  }
}

// A warp's share of a page, in registers.
template <int BITS, int SEGMENTS>
struct GemvChunk {
  uint4 words[2][BITS / 2];
  uint2 scales[SEGMENTS];
  std::uint32_t zeros[SEGMENTS];
};

// A warp's way through the pages of its block.
template <int BITS, int SEGMENTS, bool ASYMMETRIC>
struct GemvReader {
  static constexpr int kTileBytes = BITS * 256;

  std::uint32_t barrier;  // full barrier of the slot; the empty one lies kGemvMaxSlots further
  std::uint32_t first;    // of slot 0
  std::uint32_t last;     // of the last slot
  std::uint32_t parity = 0;
  const unsigned char* data;  // this lane's codes in the slot
  int scale_offset;           // from there to its scales
  int zero_offset;
  int page_bytes;
  int ring_bytes;
  bool leader;

  __device__ __forceinline__ GemvReader(const StreamArgs& a, const GemvMemory& m, int warp, int lane) {
    const int g = lane >> 2;
    page_bytes = kGemvWarps * a.shape.chunk_bytes;
    ring_bytes = a.slots * page_bytes;
    barrier = first = m.full;
    last = m.full + 8 * (a.slots - 1);
    data = m.ring + warp * a.shape.chunk_bytes + lane * 16;
    scale_offset = 2 * kTileBytes + g * 8 - lane * 16;
    zero_offset = 2 * kTileBytes + SEGMENTS * 64 + g * 4 - lane * 16;
    leader = lane == 0;
  }

  // Waits for the next page and takes this warp's chunk of it; a page may end before, then it takes what lies there.
  __device__ __forceinline__ void next(GemvChunk<BITS, SEGMENTS>& c) {
    barrier_wait(barrier, parity);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int i = 0; i < BITS / 2; ++i)
        c.words[tile][i] = *reinterpret_cast<const uint4*>(data + tile * kTileBytes + i * 512);
    }
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      c.scales[segment] = *reinterpret_cast<const uint2*>(data + scale_offset + segment * 64);
      c.zeros[segment] = 0;
      if constexpr (ASYMMETRIC)
        c.zeros[segment] = *reinterpret_cast<const std::uint32_t*>(data + zero_offset + segment * 32);
    }
    __syncwarp();
    if (leader) barrier_arrive(barrier + 8 * kGemvMaxSlots);
    data += page_bytes;
    if (barrier == last) {
      barrier = first - 8;
      data -= ring_bytes;
      parity ^= 1;
    }
    barrier += 8;
  }
};

// A lane's columns of the activations.
template <int SEGMENTS, int ROWS>
struct GemvActivations {
  using Columns = GemvColumns<ROWS>;
  const unsigned char* digits;  // of chunk 0
  const unsigned char* columns;
  int digit_step;  // bytes from chunk to chunk, 0 where the lane has no column
  int half_step;   // to the second half of a chunk
  int column_step;

  __device__ __forceinline__ GemvActivations(const GemvMemory& m, int lane) {
    const int g = lane >> 2;
    const int t = lane & 3;
    const bool digit = g < Columns::kUsed;
    const bool column = 2 * t < Columns::kStored;
    digit_step = digit ? gemv_chunk_words<ROWS>() * 4 : 0;
    half_step = digit ? Columns::kUsed * 64 : 0;
    column_step = column ? SEGMENTS * Columns::kStored * 16 : 0;
    digits = digit ? reinterpret_cast<const unsigned char*>(m.digits) + lane * 16 : m.zeros;
    columns = column ? reinterpret_cast<const unsigned char*>(m.columns) + t * 32 : m.zeros;
  }
};

template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS>
__device__ __forceinline__ void multiply_chunk(const GemvChunk<BITS, SEGMENTS>& c,
                                               const GemvActivations<SEGMENTS, ROWS>& x, int chunk,
                                               float (&acc)[2][4]) {
  const unsigned char* digits = x.digits + chunk * x.digit_step;
  const uint4 b[2] = {*reinterpret_cast<const uint4*>(digits), *reinterpret_cast<const uint4*>(digits + x.half_step)};
  const unsigned char* at = x.columns + chunk * x.column_step;
  float4 columns[SEGMENTS][2];
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
    columns[segment][0] = *reinterpret_cast<const float4*>(at);
    columns[segment][1] = *reinterpret_cast<const float4*>(at + 16);
    at += x.column_step / SEGMENTS;
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    float2 scales[SEGMENTS];
    float2 zeros[SEGMENTS];
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      const std::uint32_t pair = tile == 0 ? c.scales[segment].x : c.scales[segment].y;
      scales[segment] = __half22float2(*reinterpret_cast<const __half2*>(&pair));
      zeros[segment] = make_float2(static_cast<float>((c.zeros[segment] >> (16 * tile)) & 255u),
                                   static_cast<float>((c.zeros[segment] >> (16 * tile + 8)) & 255u));
      if constexpr (BITS == 4) {  // rows g+8 come times 16
        scales[segment].y *= 0.0625f;
        zeros[segment].y *= 16.0f;
      }
    }
    multiply_tile<BITS, SEGMENTS, ASYMMETRIC>(acc[tile], c.words[tile], b, columns, scales, zeros);
  }
}

}  // namespace facet::linear
