// The copying warps: weights and x to the ring in shared memory.
#pragma once

#include "quant_gptq/cuda/w4a16_wgmma/block.cuh"

namespace facet::linear {

inline constexpr int kCopyWarps = 4;

// x without alignment: the copying warps write the swizzled panels themselves.
template <typename T>
__device__ __forceinline__ void copy_unaligned(const WgmmaArgs& a, unsigned char* target, int first_row,
                                               int first_chunk, int chunks) {
  const auto* x = static_cast<const unsigned short*>(a.x);
  const int inputs = chunks * kChunkInputs;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 128; i < inputs * T::kColumns; i += 32 * kCopyWarps) {
    const int input = i % inputs;
    const int column = i / inputs;
    const long long k = static_cast<long long>(first_chunk) * kChunkInputs + input;
    const long long row = first_row + column;
    const unsigned short value = row < a.rows && k < a.shape.in_features ? x[row * a.x_stride + k] : 0;
    const int piece = (input % 64 / 8) ^ (column % 8);
    *reinterpret_cast<unsigned short*>(target + input / 64 * T::kPanelBytes + column * 128 + piece * 16 +
                                       input % 8 * 2) = value;
  }
  async_fence_shared();
}

// One of the copying warps. A copy takes its thread tens of clocks to start, so the four share those of a stage.
template <typename T>
class Copier {
 public:
  __device__ __forceinline__ Copier(const WgmmaArgs& args, const CUtensorMap& map, const TileMemory<T>& memory)
      : a_(args),
        map_(map),
        m_(memory),
        walk_(args),
        policy_(evict_first_policy()),
        warp_(static_cast<int>(threadIdx.x) % 128 / 32),
        first_(threadIdx.x % 32 == 0) {}

  // Weights of the first ring at once, x when it is there.
  __device__ __forceinline__ void run() {
    Place place{walk_.first, 0};
    int ahead = 0;
    for (; ahead < a_.stages && place.tile < a_.tiles; ++ahead, advance(place)) copy_weights(place, ahead);
    wait_for_predecessor();
    async_fence();  // ordinary stores of the launch before, read by the copy engine
    Place early{walk_.first, 0};
    for (int stage = 0; stage < ahead; ++stage, advance(early)) copy_inputs(early, stage);
    int stage = 0;
    std::uint32_t parity = 0;
    for (; place.tile < a_.tiles; advance(place)) {
      barrier_wait(m_.empty + 8 * stage, parity);
      __syncwarp();  // a lane that came to look after the stage was filled and read again would wait for ever
      copy_weights(place, stage);
      copy_inputs(place, stage);
      if (++stage == a_.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

 private:
  // Stages of a tile run over into the next.
  struct Place {
    int tile;
    int chunk;
  };
  __device__ __forceinline__ void advance(Place& place) const {
    place.chunk += a_.stage_chunks;
    if (place.chunk < walk_.chunks) return;
    place.chunk = 0;
    place.tile += walk_.step;
  }
  __device__ __forceinline__ int chunks_at(const Place& place) const {
    return min(a_.stage_chunks, walk_.chunks - place.chunk);
  }
  // Of `count` things this warp's share.
  __device__ __forceinline__ int share(int count) const { return (count - warp_ + kCopyWarps - 1) / kCopyWarps; }

  // Also announces all bytes that this warp copies to the stage.
  __device__ __forceinline__ void copy_weights(const Place& place, int stage) const {
    if (!first_) return;
    const Rows32& shape = a_.shape;
    const int first_unit = place.tile / a_.column_tiles * T::kUnits;
    const int units = min(T::kUnits, shape.units - first_unit);
    const int chunks = chunks_at(place);
    const int bytes = chunks * shape.chunk_bytes;
    const std::uint32_t full = m_.full + 8 * stage;
    barrier_expect(full, share(units) * bytes + (a_.tensor != 0 ? share(2 * chunks) * T::kPanelBytes : 0));
    const long long unit_bytes = static_cast<long long>(shape.chunks) * shape.chunk_bytes;
    const unsigned char* source = a_.packed + kHeaderBytes + (first_unit + warp_) * unit_bytes +
                                  static_cast<long long>(walk_.first_chunk + place.chunk) * shape.chunk_bytes;
    std::uint32_t target = shared_address(m_.w) + (stage * T::kUnits + warp_) * m_.unit_bytes;
    for (int unit = warp_; unit < units; unit += kCopyWarps) {
      bulk_copy(target, source, bytes, full, policy_);
      source += kCopyWarps * unit_bytes;
      target += kCopyWarps * m_.unit_bytes;
    }
  }

  __device__ __forceinline__ void copy_inputs(const Place& place, int stage) const {
    const int offset = stage * a_.stage_chunks * T::kChunkBytes;
    const int row = place.tile % a_.column_tiles * T::kColumns;
    const int chunk = walk_.first_chunk + place.chunk;
    const std::uint32_t full = m_.full + 8 * stage;
    if (a_.tensor == 0) {
      copy_unaligned<T>(a_, m_.x + offset, row, chunk, chunks_at(place));
      __syncwarp();
      if (first_) barrier_arrive(full);
    } else if (first_) {
      for (int panel = warp_; panel < 2 * chunks_at(place); panel += kCopyWarps)
        tensor_copy(shared_address(m_.x) + offset + panel * T::kPanelBytes, map_, chunk * kChunkInputs + panel * 64,
                    row, full);
    }
  }

  const WgmmaArgs& a_;
  const CUtensorMap& map_;
  const TileMemory<T>& m_;
  const TileWalk walk_;
  const std::uint64_t policy_;
  const int warp_;
  const bool first_;
};

}  // namespace facet::linear
