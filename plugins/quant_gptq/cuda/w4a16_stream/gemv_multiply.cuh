// Pages of weights to registers, and their products with the digits of the activations.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/gemv.cuh"

namespace facet::linear {

// A warp's share of a page, in registers.
template <int BITS, int SEGMENTS>
struct GemvChunk {
  uint4 words[2][BITS / 2];
  uint2 scales[SEGMENTS];
  std::uint32_t zeros[SEGMENTS];
};

// The activations of a chunk: B operands and, for this lane's two columns, what brings sums to scale.
template <int SEGMENTS>
struct GemvOperands {
  uint4 b[2];
  float step[SEGMENTS][2];
  float sum[SEGMENTS][2];  // of the digits, times the step
};

// 32 inputs of a tile.
template <int BITS>
__device__ __forceinline__ void multiply_step(int (&sums)[4], const uint4* words, const uint4 (&b)[2], int step,
                                              const int (&before)[4]) {
  const std::uint32_t bw[8] = {b[0].x, b[0].y, b[0].z, b[0].w, b[1].x, b[1].y, b[1].z, b[1].w};
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
}

// Products of one tile of a chunk with all columns, added to acc (rows g, g+8 by columns 2t, 2t+1).
template <int BITS, int SEGMENTS, bool ASYMMETRIC>
__device__ __forceinline__ void multiply_tile(float (&acc)[4], const uint4* words, const GemvOperands<SEGMENTS>& x,
                                              const float2 (&scales)[SEGMENTS], const float2 (&zeros)[SEGMENTS]) {
  const int magic[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
  int sums[4];
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
    constexpr int kSteps = 4 / SEGMENTS;
    multiply_step<BITS>(sums, words, x.b, segment * kSteps, magic);
#pragma unroll
    for (int step = segment * kSteps + 1; step < (segment + 1) * kSteps; ++step)
      multiply_step<BITS>(sums, words, x.b, step, sums);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float zero_point = e < 2 ? zeros[segment].x : zeros[segment].y;
      const float step = x.step[segment][e % 2];
      // Exact, as the step is a power of two and sums are below 2^22.
      const float base = fmaf(-kMagic, step, -zero_point * x.sum[segment][e % 2]);
      acc[e] = fmaf(e < 2 ? scales[segment].x : scales[segment].y, fmaf(__int_as_float(sums[e]), step, base), acc[e]);
    }
  }
}

// Pages of a unit and of the block.
__device__ __forceinline__ int unit_pages(const StreamArgs& a) {
  return (a.shape.chunks + kGemvWarps - 1) / kGemvWarps;
}
__device__ __forceinline__ int gemv_pages(const StreamArgs& a) {
  return (a.shape.units - static_cast<int>(blockIdx.x) + a.blocks - 1) / a.blocks * unit_pages(a);
}

// The way of copies through the block's pages.
struct GemvCopies {
  const unsigned char* source;
  int part = 0;  // of the unit
  int left;      // pages

  __device__ __forceinline__ GemvCopies(const StreamArgs& a)
      : source(a.packed + kHeaderBytes + static_cast<long long>(blockIdx.x) * a.shape.chunks * a.shape.chunk_bytes),
        left(gemv_pages(a)) {}
  __device__ __forceinline__ void start(const StreamArgs& a, const GemvMemory& m, int slot) const {
    const int page_bytes = kGemvWarps * a.shape.chunk_bytes;
    const int bytes = min(page_bytes, (a.shape.chunks - part * kGemvWarps) * a.shape.chunk_bytes);
    barrier_expect(m.full + 8 * slot, bytes);
    bulk_copy(shared_address(m.ring) + slot * page_bytes, source, bytes, m.full + 8 * slot, evict_first_policy());
  }
  __device__ __forceinline__ void next(const StreamArgs& a, int pages) {
    --left;
    source += kGemvWarps * a.shape.chunk_bytes;
    if (++part < pages) return;
    part = 0;
    // From behind the unit's last page, as if whole, to the block's next unit.
    source += (static_cast<long long>(a.blocks) * a.shape.chunks - pages * kGemvWarps) * a.shape.chunk_bytes;
  }
};

// A warp's way through the pages of its block.
template <int BITS, int SEGMENTS, bool ASYMMETRIC>
struct GemvReader {
  static constexpr int kTileBytes = BITS * 256;

  int slot = 0;
  std::uint32_t parity = 0;
  const unsigned char* codes;   // this lane's in slot 0
  const unsigned char* scales;  // and its scales; zero codes follow

  __device__ __forceinline__ GemvReader(const StreamArgs& a, const GemvMemory& m, int warp, int lane) {
    const unsigned char* chunk = m.ring + warp * a.shape.chunk_bytes;
    codes = chunk + lane * 16;
    scales = chunk + 2 * kTileBytes + (lane >> 2) * 8;
  }

  // Waits for the next page and takes this warp's chunk of it; a page may end before, then it takes what lies there.
  __device__ __forceinline__ void next(const StreamArgs& a, const GemvMemory& m, int lane,
                                       GemvChunk<BITS, SEGMENTS>& c) {
    const int offset = slot * (kGemvWarps * a.shape.chunk_bytes);
    barrier_wait(m.full + 8 * slot, parity);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int i = 0; i < BITS / 2; ++i)
        c.words[tile][i] = *reinterpret_cast<const uint4*>(codes + offset + tile * kTileBytes + i * 512);
    }
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      c.scales[segment] = *reinterpret_cast<const uint2*>(scales + offset + segment * 64);
      c.zeros[segment] = 0;
      if constexpr (ASYMMETRIC)  // 4 bytes for 8 of scales
        c.zeros[segment] =
            *reinterpret_cast<const std::uint32_t*>(scales + offset + SEGMENTS * 64 - (lane >> 2) * 4 + segment * 32);
    }
    // The copy that fills this slot again comes after these reads, though racecheck reports a hazard between the two:
    // the lanes' reads come before lane 0's arrival (__syncwarp orders memory among them), which releases; the copying
    // thread's wait for all eight arrivals acquires, and only then does it start the copy. The checker does not follow
    // the reads of lanes 1..31 through __syncwarp to an arrival of lane 0.
    __syncwarp();
    if (lane == 0) barrier_arrive(m.empty + 8 * slot);
    if (++slot == a.slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// This lane's operands of the activations; lanes without a column of digits keep zeros in `b`.
template <int SEGMENTS, int ROWS>
__device__ __forceinline__ void load_operands(const GemvMemory& m, int chunk, int lane, GemvOperands<SEGMENTS>& x) {
  if (lane < 4 * kGemvDigits * ROWS) {
    const std::uint32_t* digits = m.digits + chunk * gemv_half_words<ROWS>() + lane * 4;
    x.b[0] = *reinterpret_cast<const uint4*>(digits);
    x.b[1] = *reinterpret_cast<const uint4*>(digits + m.half);
  }
  const float4* pairs = m.pairs + chunk * SEGMENTS * ROWS + (lane & 3) % ROWS;
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
    const float4 pair = pairs[segment * ROWS];
    x.step[segment][0] = pair.x;
    x.sum[segment][0] = pair.y;
    x.step[segment][1] = pair.z;
    x.sum[segment][1] = pair.w;
  }
}

template <int BITS, int SEGMENTS, bool ASYMMETRIC>
__device__ __forceinline__ void multiply_chunk(const GemvChunk<BITS, SEGMENTS>& c, const GemvOperands<SEGMENTS>& x,
                                               float (&acc)[2][4]) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    float2 scales[SEGMENTS];
    float2 zeros[SEGMENTS];
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      const std::uint32_t pair = tile == 0 ? c.scales[segment].x : c.scales[segment].y;
      scales[segment] = __half22float2(*reinterpret_cast<const __half2*>(&pair));
      zeros[segment] = make_float2(BITS == 4 ? 8.0f : 128.0f, BITS == 4 ? 8.0f : 128.0f);
      if constexpr (ASYMMETRIC)
        zeros[segment] = make_float2(static_cast<float>((c.zeros[segment] >> (16 * tile)) & 255u),
                                     static_cast<float>((c.zeros[segment] >> (16 * tile + 8)) & 255u));
      if constexpr (BITS == 4) {  // rows g+8 come times 16
        scales[segment].y *= 0.0625f;
        zeros[segment].y *= 16.0f;
      }
    }
    multiply_tile<BITS, SEGMENTS, ASYMMETRIC>(acc[tile], c.words[tile], x, scales, zeros);
  }
}

}  // namespace facet::linear
