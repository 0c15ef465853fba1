// The copying warp and the multiplying warps of split.cuh.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/gemv_multiply.cuh"
#include "quant_gptq/cuda/w4a16_stream/split.cuh"

namespace facet::linear {

__device__ __forceinline__ int split_pages(const SplitShare& share) {  // of a unit
  return (share.chunks + kGemvWarps - 1) / kGemvWarps;
}

// One thread copies the block's pages. As in gemv_kernel.cuh, it waits for copies before.
__device__ __forceinline__ void split_produce(const StreamArgs& a, const GemvMemory& m) {
  const SplitShare share(a);
  const int pages = split_pages(share);
  const int page_bytes = kGemvWarps * a.shape.chunk_bytes;
  const long long unit_bytes = static_cast<long long>(a.shape.chunks) * a.shape.chunk_bytes;
  const unsigned char* unit =
      a.packed + kHeaderBytes + share.cluster * unit_bytes + share.first_chunk * a.shape.chunk_bytes;
  const std::uint64_t policy = evict_first_policy();
  int slot = 0;
  std::uint32_t parity = 1;
  int started = 0;
  int arrived = 0;
  int arrived_slot = 0;
  std::uint32_t arrived_parity = 0;
  for (int i = 0; i < share.units; ++i) {
    for (int page = 0; page < pages; ++page) {
      barrier_wait(m.empty + 8 * slot, parity);
      const int most = min(a.slots, started < a.slots ? a.first_copies : a.copies);
      while (arrived + most <= started) {
        barrier_wait(m.full + 8 * arrived_slot, arrived_parity);
        ++arrived;
        if (++arrived_slot == a.slots) {
          arrived_slot = 0;
          arrived_parity ^= 1;
        }
      }
      const int bytes = min(kGemvWarps, share.chunks - page * kGemvWarps) * a.shape.chunk_bytes;
      barrier_expect(m.full + 8 * slot, bytes);
      bulk_copy(shared_address(m.ring) + slot * page_bytes, unit + page * page_bytes, bytes, m.full + 8 * slot, policy);
      ++started;
      if (++slot == a.slots) {
        slot = 0;
        parity ^= 1;
      }
    }
    unit += a.clusters * unit_bytes;
  }
}

// A tile of a warp's chunk, in registers.
template <int BITS, int SEGMENTS, bool ASYMMETRIC>
struct SplitTile {
  uint4 words[BITS / 2];
  std::uint32_t scales[SEGMENTS];  // rows g, g+8
  std::uint32_t zeros[ASYMMETRIC ? SEGMENTS : 1];

  __device__ __forceinline__ void load(const unsigned char* chunk, int tile, int lane) {
    constexpr int kTileBytes = BITS * 256;
#pragma unroll
    for (int i = 0; i < BITS / 2; ++i)
      words[i] = *reinterpret_cast<const uint4*>(chunk + tile * kTileBytes + i * 512 + lane * 16);
    const unsigned char* side = chunk + 2 * kTileBytes;
    const int at = (lane >> 2) * 4 + tile * 2;  // of a segment's
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      scales[segment] = *reinterpret_cast<const std::uint32_t*>(side + segment * kUnitRows * 2 + at * 2);
      if constexpr (ASYMMETRIC)
        zeros[segment] = *reinterpret_cast<const std::uint16_t*>(side + (SEGMENTS * 2 + segment) * kUnitRows + at);
    }
  }

  // Products, added to acc.
  __device__ __forceinline__ void multiply(const GemvOperands<SEGMENTS>& x, float (&acc)[4]) const {
    float2 scale[SEGMENTS];
    float2 zero[SEGMENTS];
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      scale[segment] = __half22float2(*reinterpret_cast<const __half2*>(&scales[segment]));
      zero[segment] = make_float2(BITS == 4 ? 8.0f : 128.0f, BITS == 4 ? 8.0f : 128.0f);
      if constexpr (ASYMMETRIC)
        zero[segment] = make_float2(static_cast<float>(zeros[segment] & 255u), static_cast<float>(zeros[segment] >> 8));
      if constexpr (BITS == 4) {  // rows g+8 come times 16
        scale[segment].y *= 0.0625f;
        zero[segment].y *= 16.0f;
      }
    }
    multiply_tile<BITS, SEGMENTS, ASYMMETRIC>(acc, words, x, scale, zero);
  }
};

// A warp's sums of 16 rows of a unit, all columns, to their place.
template <int ROWS>
__device__ __forceinline__ void split_put(const float (&acc)[4], float* target, int lane) {
  const int g = lane >> 2;
  const int t = lane & 3;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float even = acc[2 * j];
    float odd = acc[2 * j + 1];
    float* at = target + j * 8 + g;
    // Rows 2t, 2t+1; the second digits are ROWS / 2 lanes on.
    even += __shfl_down_sync(~0u, even, ROWS / 2);
    odd += __shfl_down_sync(~0u, odd, ROWS / 2);
    if (t < ROWS / 2) {
      at[2 * t * kUnitRows] = even;
      at[(2 * t + 1) * kUnitRows] = odd;
    }
  }
}

// All pages of a warp.
template <int BITS, int SEGMENTS, bool ASYMMETRIC, int ROWS>
__device__ __forceinline__ void split_consume(const StreamArgs& a, const SplitMemory<ROWS>& m, const SplitShare& share,
                                              int warp, int lane) {
  const int first = warp / 2;
  const int tile = warp % 2;
  const int pages = split_pages(share);
  const int page_bytes = kGemvWarps * a.shape.chunk_bytes;
  const unsigned char* const ring = m.gemv.ring + first * a.shape.chunk_bytes;
  GemvOperands<SEGMENTS> x;
  x.b[0] = x.b[1] = make_uint4(0, 0, 0, 0);
  int slot = 0;
  std::uint32_t parity = 0;
  std::uint32_t sums_parity = 1;
#pragma unroll 1
  for (int unit = 0; unit < share.units; ++unit) {
    float acc[4] = {};
    int chunk = first;
#pragma unroll 1
    for (int page = 0; page < pages; ++page, chunk += kGemvWarps) {
      SplitTile<BITS, SEGMENTS, ASYMMETRIC> c;
      barrier_wait(m.gemv.full + 8 * slot, parity);
      // A page may end before this warp's chunk, then it takes what lies there. See GemvReader on the arrival.
      c.load(ring + slot * page_bytes, tile, lane);
      __syncwarp();
      if (lane == 0) barrier_arrive(m.gemv.empty + 8 * slot);
      if (++slot == a.slots) {
        slot = 0;
        parity ^= 1;
      }
      if (chunk >= share.chunks) continue;
      load_operands<SEGMENTS, ROWS>(m.gemv, chunk, lane, x);
      c.multiply(x, acc);
    }
    barrier_wait(m.sum.taken, sums_parity);
    sums_parity ^= 1;
    split_put<ROWS>(acc, m.sum.parts + first * ROWS * kUnitRows + tile * 16, lane);
    __syncwarp();
    if (lane == 0) barrier_arrive(m.sum.summed);
  }
}

}  // namespace facet::linear
