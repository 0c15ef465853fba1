// Activations of split.cuh.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/gemv_inputs.cuh"
#include "quant_gptq/cuda/w4a16_stream/split.cuh"

namespace facet::linear {

// ROWS rows of 4 / ROWS chunks one after the other.
template <int ROWS>
struct SplitRound {
  static constexpr int kChunks = 4 / ROWS;
  int chunk;
  int lane;
  __device__ __forceinline__ int chunk_of(int i) const { return chunk + i / ROWS; }
  __device__ __forceinline__ int row_of(int i) const { return i % ROWS; }
};

// Starts the loads of a round to where its digits will be, two rows of chunks at a time, 16 lanes each. Rows that are
// not there stay as they are: sums of their columns are not used.
template <int ROWS>
__device__ __forceinline__ void split_fetch(const StreamArgs& a, const GemvMemory& m, const SplitShare& share,
                                            const SplitRound<ROWS>& at) {
  const int inputs = static_cast<int>(a.shape.in_features);
  const auto* x = static_cast<const __nv_bfloat16*>(a.x);
  const bool aligned = aligned_to<16>(x) && a.x_stride % 8 == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = 2 * half + at.lane / 16;
    const int row = at.row_of(i);
    if (row >= a.rows || at.chunk_of(i) >= share.chunks) continue;
    const int first = (share.first_chunk + at.chunk_of(i)) * kChunkInputs + at.lane % 16 * 8;
    unsigned char* place = waiting_place<ROWS>(m, at.chunk_of(i), at.row_of(i), at.lane % 16 * 16);
    const __nv_bfloat16* values = x + row * a.x_stride + first;
    if (aligned && first + 8 <= inputs) {
      copy16(shared_address(place), values);
    } else {
#pragma unroll 1
      for (int k = 0; k < 8; ++k)
        reinterpret_cast<unsigned short*>(place)[k] =
            first + k < inputs ? *reinterpret_cast<const volatile unsigned short*>(values + k) : 0;
    }
  }
}

// The block's inputs of all rows as digits; each warp fetches and cuts its share of the rounds.
template <int SEGMENTS, int ROWS>
__device__ __forceinline__ void split_inputs(const StreamArgs& a, const SplitMemory<ROWS>& m, const SplitShare& share,
                                             int warp, int lane) {
  using At = SplitRound<ROWS>;
  const int rounds = (share.chunks + At::kChunks - 1) / At::kChunks;
  wait_for_predecessor();
#pragma unroll 1
  for (int round = warp; round < rounds; round += kSplitWarps)
    split_fetch<ROWS>(a, m.gemv, share, At{round * At::kChunks, lane});
  copies_done();
  __syncwarp();
#pragma unroll 1
  for (int round = warp; round < rounds; round += kSplitWarps) {
    const At at{round * At::kChunks, lane};
    float v[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint2 raw = make_uint2(0, 0);
      if (at.chunk_of(i) < share.chunks)
        raw = *reinterpret_cast<const uint2*>(waiting_place<ROWS>(m.gemv, at.chunk_of(i), at.row_of(i), lane * 8));
      to_float(raw, v + 4 * i);
    }
    __syncwarp();  // all have read before digits go there
    quantize_round<SEGMENTS, ROWS>(v, at, share.chunks, m.gemv);
  }
  named_sync(kSplitBarrier, kSplitWarps * 32);
}

}  // namespace facet::linear
