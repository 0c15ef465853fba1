// The warps of wide.cuh that cut activations into digits.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/wide.cuh"
#include "quant_gptq/cuda/w4a16_stream/wide_digits.cuh"

namespace facet::linear {

// A pass is four rows of a chunk: a lane has 16 inputs of row lane / 8. Passes of all stages of all tiles go to the
// warps in turn.
template <int SEGMENTS, bool ASYMMETRIC, bool INT4>
class WideCutter {
 public:
  __device__ __forceinline__ WideCutter(const WideArgs& args, const WideMemory& memory, int lane)
      : a_(args), m_(memory), walk_(args), lane_(lane), piece_(lane % 8) {}

  __device__ __forceinline__ void run(int warp) const {
    const int passes = walk_.stage_chunks() << kChunkShift;  // of a stage
    const int tiles = walk_.first < a_.tiles ? (a_.tiles - walk_.first - 1) / a_.clusters + 1 : 0;
    const int stages = tiles * walk_.stages;
    WideSlot slot;
    int pass = warp;
#pragma unroll 1
    for (int stage = 0; stage < stages; slot.next(a_.stages), ++stage, pass -= passes) {
#pragma unroll 1
      for (; pass < passes; pass += kWideCutWarps) cut(slot, stage, pass);
    }
  }

 private:
  static constexpr int kChunkShift = 1;  // 2^kChunkShift passes are a chunk
  static_assert(kWideRows == 4 << kChunkShift);
  static constexpr int kLanes = 8 / SEGMENTS;  // of a row's segment
  using Digits = WideDigits<SEGMENTS, ASYMMETRIC, INT4>;

  __device__ __forceinline__ static std::uint32_t largest_of(const std::uint32_t (&words)[8]) {
    std::uint32_t largest = words[0] & Digits::kMagnitudes;
#pragma unroll
    for (int i = 1; i < 8; ++i) largest = __vmaxu2(largest, words[i] & Digits::kMagnitudes);
    return largest;
  }

  // Pass `pass` of stage `stage` of all tiles.
  __device__ __forceinline__ void cut(const WideSlot& slot, int stage, int pass) const {
    const int chunk = pass >> kChunkShift;
    const int row = (pass & ((1 << kChunkShift) - 1)) * 4 + lane_ / 8;
    const int place_of_chunk = (slot.at << walk_.stage_shift) + chunk;
    unsigned char* const digits = m_.digits + place_of_chunk * kWideChunkDigitBytes;
    // Six warps do not all have a pass in each stage of four. One that had none here a round ago must know that the
    // round is over: copies arrive in any order, and a place still without its inputs has the parity of one that has
    // had them twice.
    barrier_wait(m_.empty(slot.at), slot.parity ^ 1);
    barrier_wait(m_.raw(slot.at), slot.parity);
    uint4 raw[2];
    if (a_.tensor != 0) {
      raw[0] = *reinterpret_cast<const uint4*>(Digits::place(digits, piece_ / 4, row, piece_ % 4 * 2));
      raw[1] = *reinterpret_cast<const uint4*>(Digits::place(digits, piece_ / 4, row, piece_ % 4 * 2 + 1));
    } else {
      load(stage, chunk, row, raw);
    }
    const std::uint32_t words[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w, raw[1].x, raw[1].y, raw[1].z, raw[1].w};
    // Its shuffles make sure that all lanes have read.
    const unsigned exponent = Digits::template exponent_of<kLanes>(largest_of(words));
    const float scale = Digits::scale_of(exponent);
    std::uint32_t low[4], high[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {  // the inputs of a word of codes: 2t, 2t+8, 2t+1, 2t+9
      const std::uint32_t even =
          __byte_perm(Digits::fixed(low_bf16(words[t]), scale), Digits::fixed(low_bf16(words[t + 4]), scale), 0x5140);
      const std::uint32_t odd =
          __byte_perm(Digits::fixed(high_bf16(words[t]), scale), Digits::fixed(high_bf16(words[t + 4]), scale), 0x5140);
      low[t] = __byte_perm(even, odd, 0x5410) ^ 0x80808080u;
      high[t] = __byte_perm(even, odd, 0x7632);
    }
    *reinterpret_cast<uint4*>(Digits::place(digits, 0, row, piece_)) = make_uint4(high[0], high[1], high[2], high[3]);
    *reinterpret_cast<uint4*>(Digits::place(digits, 1, row, piece_)) = make_uint4(low[0], low[1], low[2], low[3]);
    write_pair(place_of_chunk, row, exponent, low, high);
    async_fence_shared();
    __syncwarp();
    if (lane_ == 0) barrier_arrive(m_.full(slot.at));
  }

  __device__ __forceinline__ void write_pair(int chunk, int row, unsigned exponent, const std::uint32_t (&low)[4],
                                             const std::uint32_t (&high)[4]) const {
    const float step = Digits::step_of(exponent);
    auto* pairs =
        reinterpret_cast<float*>(m_.pairs + chunk * (SEGMENTS * kWidePairBytes)) + piece_ / kLanes * kWideRows + row;
    if (piece_ % kLanes == 0) pairs[0] = step;
    if constexpr (ASYMMETRIC) {
      int low_sum = 0, high_sum = 0;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        low_sum = __dp4a(static_cast<int>(low[t]), 0x01010101, low_sum);
        high_sum = __dp4a(static_cast<int>(high[t]), 0x01010101, high_sum);
      }
      const int sum = Digits::template sum_of<kLanes>(low_sum, high_sum);
      if (piece_ % kLanes == 0) pairs[SEGMENTS * kWideRows] = step * static_cast<float>(sum);
    }
  }

  // Inputs of rows that are not aligned.
  __device__ __forceinline__ void load(int stage, int chunk, int row, uint4 (&raw)[2]) const {
    const int of_tile = (stage % walk_.stages << walk_.stage_shift) + chunk;
    const int first = (walk_.first_chunk + of_tile) * kChunkInputs + piece_ * 16;
    const bool there = of_tile < walk_.chunks && row < a_.rows;
    const int count = there ? static_cast<int>(a_.shape.in_features) - first : 0;
    const auto* x = static_cast<const unsigned short*>(a_.x) + row * a_.x_stride + first;
    auto* words = reinterpret_cast<std::uint32_t*>(raw);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto* pair = reinterpret_cast<const volatile unsigned short*>(x + 2 * i);
      const std::uint32_t low = 2 * i < count ? pair[0] : 0;
      const std::uint32_t high = 2 * i + 1 < count ? pair[1] : 0;
      words[i] = low | high << 16;
    }
  }

  const WideArgs& a_;
  const WideMemory& m_;
  const WideWalk walk_;
  const int lane_;
  const int piece_;
};

}  // namespace facet::linear
