// The two ends of a step: embedding rows in; rows, soft cap and the best token out.
#include "candidate.cuh"
#include "device_math.cuh"
#include "launch.h"

namespace facet::cuda {
namespace {

constexpr int kThreads = 256;

// Element i of a row in the canonical form of abi/weight.h.
__device__ float weight_at(const abi::WeightView& table, std::int64_t row, std::int64_t i, std::int64_t groups) {
  const char* values = static_cast<const char*>(table.values) + row * table.row_bytes;
  if (table.format == abi::WeightFormat::bf16)
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(values)[i]);
  const std::int64_t group = row * groups + i / table.group_size;
  int code = 0, zero = 0;
  if (table.format == abi::WeightFormat::int4) {
    code = static_cast<int>((reinterpret_cast<const std::uint32_t*>(values)[i / 8] >> (4 * (i % 8))) & 15u);
    zero = 8;
  } else {
    code = reinterpret_cast<const std::uint8_t*>(values)[i];
    zero = 128;
  }
  if (table.zeros != nullptr) zero = table.zeros[group];
  return static_cast<float>(code - zero) * table.scales[group];
}

__global__ void embed_kernel(const __grid_constant__ abi::WeightView table, const std::int32_t* ids,
                             const std::int32_t* previous, float scale, std::int64_t groups, float* out) {
  let_successor_begin();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (i >= table.in_features) return;
  const std::int64_t token = blockIdx.x;
  const std::int32_t id = ids[token] < 0 ? max(previous[-1 - ids[token]], 0) : ids[token];
  out[token * table.in_features + i] = weight_at(table, id, i, groups) * scale;
}

__global__ void gather_rows_kernel(const float* in, const std::int32_t* rows, std::int64_t width, float* out) {
  let_successor_begin();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (i < width) out[blockIdx.x * width + i] = in[rows[blockIdx.x] * width + i];
}

__global__ void soft_cap_kernel(float* values, std::int64_t count, float cap) {
  let_successor_begin();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) values[i] = soft_capped(values[i], cap);
}

__device__ Candidate block_max(Candidate value, Candidate* scratch) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const Candidate other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) value = scratch[warp] > value ? scratch[warp] : value;
  return value;
}

// Where a logit lies below this, its capped value lies below that of `most`. A cap leaves the order but brings values
// together, in the end to one: from -1.4 to 1.4 caps its slope is at least 0.21, so that a distance of 2^-12 caps is
// left with 5e-5 of them, a hundred times the error of soft_capped().
__device__ float least_candidate(float most, float cap) {
  if (cap == 0.0f) return most;
  const float steep = 1.4f * cap;
  return most < -steep ? -INFINITY : fminf(most, steep) - cap * 0x1p-12f;
}

__device__ float warp_max(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// All logits are read once and compared as they are. Only those near the largest of a warp's are worth a cap and a
// candidate: they are few, and read again.
__global__ void argmax_part_kernel(const float* logits, std::int64_t vocabulary, float cap, Candidate* parts) {
  constexpr int kLoads = 16;  // of a thread, under way together; 64 blocks cover a row of 262,144
  constexpr std::int64_t kTile = kThreads * kLoads;
  __shared__ Candidate scratch[32];
  let_successor_begin();
  wait_for_predecessor();
  logits += blockIdx.y * vocabulary;
  Candidate best = 0;
  for (std::int64_t tile = blockIdx.x * kTile; tile < vocabulary; tile += gridDim.x * kTile) {
    const std::int64_t first = tile + threadIdx.x;
    float values[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::int64_t id = first + i * kThreads;
      values[i] = id < vocabulary ? logits[id] : -INFINITY;
    }
    float most = -INFINITY;  // of all but NaN
#pragma unroll
    for (int i = 0; i < kLoads; ++i) most = fmaxf(most, values[i]);
    const float least = least_candidate(warp_max(most), cap);
    unsigned wanted = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) wanted |= values[i] < least ? 0u : 1u << i;  // NaN is wanted
    for (; wanted != 0; wanted &= wanted - 1) {
      const std::int64_t id = first + (__ffs(static_cast<int>(wanted)) - 1) * kThreads;
      if (id < vocabulary) best = max(best, candidate(soft_capped(logits[id], cap), static_cast<std::uint32_t>(id)));
    }
  }
  best = block_max(best, scratch);
  if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = best;
}

__global__ void argmax_kernel(const Candidate* parts, int count, std::int32_t* ids) {
  __shared__ Candidate scratch[32];
  let_successor_begin();
  wait_for_predecessor();
  Candidate best = static_cast<int>(threadIdx.x) < count ? parts[blockIdx.x * count + threadIdx.x] : 0;
  best = block_max(best, scratch);
  if (threadIdx.x == 0) ids[blockIdx.x] = best == kBad || best == 0 ? -1 : id_of(best);
}

unsigned pieces(std::int64_t width) {
  return static_cast<unsigned>((width + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t launch_embed(const abi::WeightView& table, const std::int32_t* ids, const std::int32_t* previous,
                         std::int64_t tokens, float scale, float* out, cudaStream_t stream) {
  const std::int64_t groups = table.group_size == 0 ? 0 : (table.in_features + table.group_size - 1) / table.group_size;
  return launch_dependent(embed_kernel, dim3(static_cast<unsigned>(tokens), pieces(table.in_features)), dim3(kThreads),
                          0, stream, table, ids, previous, scale, groups, out);
}

cudaError_t launch_gather_rows(const float* in, const std::int32_t* rows, std::int64_t count, std::int64_t width,
                               float* out, cudaStream_t stream) {
  return launch_dependent(gather_rows_kernel, dim3(static_cast<unsigned>(count), pieces(width)), dim3(kThreads), 0,
                          stream, in, rows, width, out);
}

cudaError_t launch_soft_cap(float* values, std::int64_t count, float cap, cudaStream_t stream) {
  return launch_dependent(soft_cap_kernel, dim3(pieces(count)), dim3(kThreads), 0, stream, values, count, cap);
}

cudaError_t launch_argmax(const float* logits, std::int64_t rows, std::int64_t vocabulary, float cap, std::int32_t* ids,
                          void* scratch, cudaStream_t stream) {
  auto* parts = static_cast<Candidate*>(scratch);
  const cudaError_t first = launch_dependent(argmax_part_kernel, dim3(kArgmaxBlocks, static_cast<unsigned>(rows)),
                                             dim3(kThreads), 0, stream, logits, vocabulary, cap, parts);
  if (first != cudaSuccess) return first;
  return launch_dependent(argmax_kernel, dim3(static_cast<unsigned>(rows)), dim3(kArgmaxBlocks), 0, stream,
                          static_cast<const Candidate*>(parts), kArgmaxBlocks, ids);
}

}  // namespace facet::cuda
