// Single instructions of the device with names: those of facet/sdk/cuda that the kernels use, and their own.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "facet/sdk/cuda/barrier.cuh"
#include "facet/sdk/cuda/cluster.cuh"
#include "facet/sdk/cuda/copy.cuh"
#include "facet/sdk/cuda/launch.cuh"
#include "facet/sdk/cuda/memory.cuh"

namespace facet::attention::cuda {

using ::facet::cuda::async_fence_global, ::facet::cuda::async_fence_shared, ::facet::cuda::shared_address;
using ::facet::cuda::barrier_arrive, ::facet::cuda::barrier_expect, ::facet::cuda::barrier_init;
using ::facet::cuda::barrier_init_fence, ::facet::cuda::named_sync;
using ::facet::cuda::block_flag, ::facet::cuda::block_memory;
using ::facet::cuda::bulk_copy, ::facet::cuda::tensor_copy;
using ::facet::cuda::cluster_address, ::facet::cuda::cluster_arrive_aligned, ::facet::cuda::cluster_wait_aligned;
using ::facet::cuda::let_successor_begin, ::facet::cuda::wait_for_predecessor;

// 16 bytes from global to shared memory; zeros without reading when `valid` is false.
__device__ __forceinline__ void copy16_async(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void load_two_matrices_transposed(std::uint32_t& a, std::uint32_t& b, std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(a), "=r"(b)
               : "r"(from)
               : "memory");
}

// The 8 by 8 values of 16 bits that a warp holds, two side by side of row lane / 4 a lane, with rows for columns.
__device__ __forceinline__ std::uint32_t transpose_matrix(std::uint32_t from) {
  std::uint32_t to;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(from));
  return to;
}

// sum[16, 8] += a[16, 16] b[16, 8]
__device__ __forceinline__ void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// (word & mask) | set in one instruction; left to itself, nvcc makes two of it where both are constants.
__device__ __forceinline__ std::uint32_t and_or(std::uint32_t word, std::uint32_t mask, std::uint32_t set) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(set));
  return result;
}
// Of two bf16.
__device__ __forceinline__ std::uint32_t subtract_bf16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t difference;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void store4(std::uint32_t to, std::uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void store8(std::uint32_t to, uint2 value) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(value.x), "r"(value.y) : "memory");
}
__device__ __forceinline__ void store16(std::uint32_t to, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

__device__ __forceinline__ float4 load16(std::uint32_t from) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ uint4 load_words(std::uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}
// The value is read, whoever uses it.
__device__ __forceinline__ void fetch(std::uint32_t value) {
  asm volatile("" ::"r"(value));
}

// Writes of the shared memory of another block of the cluster, at its cluster_address.
__device__ __forceinline__ void store_remote2(std::uint32_t to, float2 value) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(value.x), "f"(value.y) : "memory");
}
__device__ __forceinline__ void store_remote4(std::uint32_t to, float4 value) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(value.x), "f"(value.y), "f"(value.z),
               "f"(value.w)
               : "memory");
}

// As the SDK's, with the loop in the instructions.
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait;\n}" ::"r"(
          barrier),
      "r"(parity)
      : "memory");
}

}  // namespace facet::attention::cuda
