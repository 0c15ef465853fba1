// The copying warps of wide.cuh. A copy takes its warp some 75 clocks to start, whichever lane starts it, so weights
// and inputs have a warp each, and the inputs of a stage are one copy.
#pragma once

#include "quant_gptq/cuda/w4a16_stream/wide.cuh"

namespace facet::linear {

// Weights, a lane a unit. The first ring is on its way before the launch before has ended.
__device__ __forceinline__ void wide_copy_weights(const WideArgs& a, const WideMemory& m, int lane) {
  const WideWalk walk(a);
  const long long unit_bytes = static_cast<long long>(a.shape.chunks) * a.shape.chunk_bytes;
  const int stage_unit_bytes = a.shape.chunk_bytes << walk.stage_shift;
  const std::uint32_t ring = shared_address(m.weights) + lane * stage_unit_bytes;
  const std::uint64_t policy = evict_first_policy();
  WideSlot slot;
  slot.parity = 1;
#pragma unroll 1
  for (int tile = walk.first; tile < a.tiles; tile += a.clusters) {
    const int units = min(walk.units, a.shape.units - tile * walk.units);
    const unsigned char* source = a.packed + kHeaderBytes + (tile * walk.units + lane) * unit_bytes +
                                  static_cast<long long>(walk.first_chunk) * a.shape.chunk_bytes;
#pragma unroll 1
    for (int chunk = 0; chunk < walk.chunks; chunk += walk.stage_chunks()) {
      barrier_wait(m.empty(slot.at), slot.parity);
      const int bytes = min(walk.stage_chunks(), walk.chunks - chunk) * a.shape.chunk_bytes;
      const std::uint32_t full = m.full(slot.at);
      if (lane == 0) barrier_expect(full, units * bytes);
      __syncwarp();
      if (lane < units) bulk_copy(ring + slot.at * kWideStageChunks * a.shape.chunk_bytes, source, bytes, full, policy);
      source += stage_unit_bytes;
      slot.next(a.stages);
    }
  }
}

// Inputs of all rows, a stage at a time, once they are there; or their digits. By one thread.
__device__ __forceinline__ void wide_copy_inputs(const WideArgs& a, const CUtensorMap& map, const WideMemory& m) {
  const WideWalk walk(a);
  const int bytes = kWideChunkDigitBytes << walk.stage_shift;
  const int pair_bytes = a.shape.segments * kWidePairBytes << walk.stage_shift;
  wait_for_predecessor();
  await_rows(a.norm, a.rows);
  async_fence();  // ordinary stores of other blocks, read by the copy engine
  WideSlot slot;
  slot.parity = 1;
#pragma unroll 1
  for (int tile = walk.first; tile < a.tiles; tile += a.clusters) {
#pragma unroll 1
    for (int stage = 0; stage < walk.stages; ++stage) {
      barrier_wait(m.empty(slot.at), slot.parity);
      const std::uint32_t raw = m.raw(slot.at);
      const int chunk = walk.first_chunk + (stage << walk.stage_shift);
      unsigned char* const target = m.digits + slot.at * bytes;
      if (a.norm.count > 0) {
        const std::uint32_t full = m.full(slot.at);
        barrier_expect(full, bytes + pair_bytes);
        bulk_copy(shared_address(target), a.digits + static_cast<long long>(chunk) * kWideChunkDigitBytes, bytes, full);
        bulk_copy(shared_address(m.pairs) + slot.at * pair_bytes,
                  a.pairs + static_cast<long long>(chunk) * (a.shape.segments * kWidePairBytes), pair_bytes, full);
      } else if (a.tensor != 0) {
        barrier_expect(raw, bytes);
        tensor_copy(shared_address(target), map, 0, 0, 2 * chunk, raw);
      } else {
        barrier_arrive(raw);
      }
      slot.next(a.stages);
    }
  }
  leave_rows(a.norm, a.clusters << a.split_shift);
}

}  // namespace facet::linear
