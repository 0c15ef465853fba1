// The multiplying warpgroups of wide.cuh.
#pragma once

#include "quant_gptq/cuda/device/integer_wgmma.cuh"
#include "quant_gptq/cuda/w4a16_stream/wide.cuh"

namespace facet::linear {

template <int BITS, int SEGMENTS, bool ASYMMETRIC>
class WideMultiplier {
 public:
  __device__ __forceinline__ WideMultiplier(const WideArgs& args, const WideMemory& memory)
      : a_(args),
        m_(memory),
        walk_(args),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32 % 4) {
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);  // to the compiler the same in a warp
    k_group_ = group * a_.k_shift;
    row_group_ = group - k_group_;
    const int unit = 2 * row_group_ + (warp_ >> 1);
    const int chunk = 2 * k_group_;
    const std::uint32_t first = offset_of(m_.weights) + ((unit << walk_.stage_shift) + chunk) * a_.shape.chunk_bytes;
    barriers_ = m_.barriers;
    tile_ = first + (warp_ & 1) * kTileBytes + lane_ * 16;
    side_ = first + 2 * kTileBytes + slot() * 2;
    columns_ = static_cast<std::uint32_t>(wgmma_matrix(shared_address(m_.digits) + chunk * kWideChunkDigitBytes));
    pairs_ = offset_of(m_.pairs) + chunk * kChunkPairBytes + (lane_ & 3) * 8;
    for (std::uint32_t* value : {&barriers_, &tile_, &side_, &columns_, &pairs_}) keep(*value);
  }

  // All tiles; finish(tile, n) writes the n-th when its sums are on their way.
  template <typename Finish>
  __device__ __forceinline__ void run(Finish finish) {
    WideSlot slot;
    int n = 0;
#pragma unroll 1
    for (int tile = walk_.first; tile < a_.tiles; tile += a_.clusters, ++n) {
#pragma unroll
      for (int i = 0; i < kTotals; ++i) total_[i] = 0.0f;
      int left = walk_.chunks - 2 * k_group_;  // chunks from this warpgroup's next on
      int stages = walk_.stages;
#pragma unroll 1
      do {
        const std::uint32_t full = barriers_ + 8 * slot.at;
        barrier_wait(full, slot.parity);
        if (left >= 2) {
          multiply_chunks<2>(slot.at);
        } else if (left == 1) {
          multiply_chunks<1>(slot.at);
        }
        __syncwarp();
        if (lane_ == 0) barrier_arrive(full + WideMemory::kEmpty);
        slot.next(a_.stages);
        left -= walk_.stage_chunks();
      } while (--stages > 0);
      put(n);
      finish(tile, n);
    }
  }

 private:
  static constexpr int kTotals = kWideRows / 2;  // of a thread
  static constexpr int kSums = 2 * kTotals;      // of both digits
  static constexpr int kSteps = 4 / SEGMENTS;    // of 32 inputs in a segment
  static constexpr int kTileBytes = BITS * 256;  // 16 rows of W
  static constexpr std::uint32_t kSigns = 0x80808080u;
  static constexpr std::uint32_t kChunkColumns = kWideChunkDigitBytes >> 4;  // from a wgmma_matrix() to the next
  static constexpr int kChunkPairBytes = SEGMENTS * kWidePairBytes;

  // In the block's shared memory. nvcc computes it with 32 bits.
  __device__ __forceinline__ static std::uint32_t offset_of(const unsigned char* place) {
    return static_cast<std::uint32_t>(place - block_memory_1024);
  }
  // Of this lane's two rows of W among those of a unit.
  __device__ __forceinline__ int slot() const {
    return (lane_ >> 2) * 4 + (warp_ & 1) * 2;
  }

  // CHUNKS chunks side by side of a stage. While products of a segment are under way, those of the one before come to
  // scale.
  template <int CHUNKS>
  __device__ __forceinline__ void multiply_chunks(int stage) {
    const std::uint32_t chunk_bytes = a_.shape.chunk_bytes;
    const unsigned char* tile = block_memory_1024 + (tile_ + stage * (kWideStageChunks * chunk_bytes));
    const unsigned char* pairs = block_memory_1024 + (pairs_ + (stage << walk_.stage_shift) * kChunkPairBytes);
    const std::uint32_t columns = columns_ + (stage << walk_.stage_shift) * kChunkColumns;
    int sums[2][kSums];
    uint4 words[CHUNKS][BITS / 2];
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
      for (int i = 0; i < BITS / 2; ++i)
        words[chunk][i] = *reinterpret_cast<const uint4*>(tile + chunk * chunk_bytes + i * 512);
    }
    const unsigned char* side = block_memory_1024 + (side_ + stage * (kWideStageChunks * chunk_bytes));
#pragma unroll
    for (int piece = 0; piece < CHUNKS * SEGMENTS; ++piece) {
      start_segment(words[piece / SEGMENTS], piece % SEGMENTS, columns + piece / SEGMENTS * kChunkColumns,
                    sums[piece % 2]);
      if (piece == 0) continue;
      const int last = piece - 1;
      finish_segment<1>(side + last / SEGMENTS * chunk_bytes, pairs + last / SEGMENTS * kChunkPairBytes,
                        last % SEGMENTS, sums[last % 2]);
    }
    finish_segment<0>(side + (CHUNKS - 1) * chunk_bytes, pairs + (CHUNKS - 1) * kChunkPairBytes, SEGMENTS - 1,
                      sums[(CHUNKS * SEGMENTS - 1) % 2]);
  }

  __device__ __forceinline__ void start_segment(const uint4 (&words)[BITS / 2], int segment, std::uint32_t columns,
                                                int (&sums)[kSums]) const {
    std::uint32_t operand[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) operand_of(words, segment * kSteps + i, operand[i]);
    wgmma_fence();
    IntegerWgmma16<!ASYMMETRIC, false>::run(sums, operand[0], columns + (segment * kSteps * 32 >> 4));
#pragma unroll
    for (int i = 1; i < kSteps; ++i)
      IntegerWgmma16<!ASYMMETRIC, true>::run(sums, operand[i], columns + ((segment * kSteps + i) * 32 >> 4));
    wgmma_commit();
  }

  // Brings sums to scale when at most PENDING products are under way. `side`: scales of the chunk, then zeros.
  template <int PENDING>
  __device__ __forceinline__ void finish_segment(const unsigned char* side, const unsigned char* pairs, int segment,
                                                 int (&sums)[kSums]) {
    float2 scale = __half22float2(*reinterpret_cast<const __half2*>(side + segment * kUnitRows * 2));
    float2 zero = make_float2(0, 0);
    if constexpr (ASYMMETRIC) {
      const std::uint32_t both =
          *reinterpret_cast<const std::uint16_t*>(side + (SEGMENTS * 2 + segment) * kUnitRows - slot());
      scale.y *= 0.0625f;  // rows g+8 come times 16
      zero = make_float2(-static_cast<float>(both & 255u), -16.0f * static_cast<float>(both >> 8));
    }
    const float2 step = *reinterpret_cast<const float2*>(pairs + segment * kWideRows * 4);
    float2 sum = make_float2(0, 0);
    if constexpr (ASYMMETRIC) sum = *reinterpret_cast<const float2*>(pairs + (SEGMENTS + segment) * kWideRows * 4);
    wgmma_wait<PENDING>();
    wgmma_sums_ready(sums);
#pragma unroll
    for (int e = 0; e < kTotals; ++e) {
      const auto both = static_cast<float>(256 * sums[e] + sums[kTotals + e]);
      float value = both * ((e & 1) != 0 ? step.y : step.x);
      if constexpr (ASYMMETRIC) value = fmaf(e < 2 ? zero.x : zero.y, (e & 1) != 0 ? sum.y : sum.x, value);
      total_[e] = fmaf(e < 2 ? scale.x : scale.y, value, total_[e]);
    }
  }

  __device__ __forceinline__ static void operand_of(const uint4 (&words)[BITS / 2], int step,
                                                    std::uint32_t (&operand)[4]) {
    if constexpr (BITS == 4) {
      const uint4 quad = words[step / 2];
      const std::uint32_t first = step % 2 == 0 ? quad.x : quad.z;
      const std::uint32_t second = step % 2 == 0 ? quad.y : quad.w;
      if constexpr (ASYMMETRIC) {  // codes; of rows g+8 times 16
        operand[0] = first & 0x0f0f0f0fu;
        operand[1] = first & 0xf0f0f0f0u;
        operand[2] = second & 0x0f0f0f0fu;
        operand[3] = second & 0xf0f0f0f0u;
      } else {  // 16 times code minus 8, signed
        operand[0] = masked_xor(first << 4, 0xf0f0f0f0u, kSigns);
        operand[1] = masked_xor(first, 0xf0f0f0f0u, kSigns);
        operand[2] = masked_xor(second << 4, 0xf0f0f0f0u, kSigns);
        operand[3] = masked_xor(second, 0xf0f0f0f0u, kSigns);
      }
    } else {  // code minus 128, signed
      const uint4 quad = words[step];
      operand[0] = quad.x ^ kSigns;
      operand[1] = quad.y ^ kSigns;
      operand[2] = quad.z ^ kSigns;
      operand[3] = quad.w ^ kSigns;
    }
  }

  // Sums of the block's n-th tile to the owners of their rows.
  __device__ __forceinline__ void put(int n) const {
    const int owned_shift = 7 - a_.k_shift - a_.split_shift;  // 2^owned_shift rows of W are a block's
    const int source = (walk_.rank << a_.k_shift) + k_group_;
    const std::uint32_t buffer = shared_address(m_.sums) + (n & (a_.sum_buffers - 1)) * kWideSumBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 64 * row_group_ + 16 * warp_ + 8 * half + (lane_ >> 2);
      const int owner = row >> owned_shift;
      const int at = (((source << owned_shift) + (row & ((1 << owned_shift) - 1))) * kWideRows + (lane_ & 3) * 2) * 4;
      const std::uint32_t target = cluster_address(buffer + at, owner);
      const std::uint32_t barrier = cluster_address(m_.summed(), owner);
      store_async(target, make_float2(total_[2 * half], total_[2 * half + 1]), barrier);
    }
  }

  const WideArgs& a_;
  const WideMemory& m_;
  const WideWalk walk_;
  const int lane_;
  const int warp_;  // of the warpgroup
  int k_group_;
  int row_group_;
  // In stage 0: barriers, the first chunk's codes for this lane, its scales, its digits (a wgmma_matrix) and what they
  // are worth.
  std::uint32_t barriers_;
  std::uint32_t tile_;
  std::uint32_t side_;
  std::uint32_t columns_;
  std::uint32_t pairs_;
  float total_[kTotals];
};

}  // namespace facet::linear
