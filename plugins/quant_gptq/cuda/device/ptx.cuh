// Instructions that C++ does not name: those of facet/sdk/cuda, and the kernels' own.
#pragma once

#include "quant_gptq/cuda/device/sdk_names.cuh"
#include "quant_gptq/cuda/device/values.cuh"

namespace facet::linear {

// d = a b + c, 16x8 by 32 inputs: unsigned codes times signed digits.
__device__ __forceinline__ void mma_u8s8(int (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                         std::uint32_t a3, std::uint32_t b0, std::uint32_t b1, const int (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// 16 bytes to shared memory of the cluster, counted by the barrier beside them.
__device__ __forceinline__ void store_async(std::uint32_t target, const float4& value, std::uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(target),
               "r"(__float_as_uint(value.x)), "r"(__float_as_uint(value.y)), "r"(__float_as_uint(value.z)),
               "r"(__float_as_uint(value.w)), "r"(barrier)
               : "memory");
}
// 8 bytes likewise.
__device__ __forceinline__ void store_async(std::uint32_t target, const float2& value, std::uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1,%2}, [%3];" ::"r"(target),
               "r"(__float_as_uint(value.x)), "r"(__float_as_uint(value.y)), "r"(barrier)
               : "memory");
}

// (value & mask) | bits in one instruction.
__device__ __forceinline__ std::uint32_t masked_or(std::uint32_t value, std::uint32_t mask, std::uint32_t bits) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(value), "r"(mask), "r"(bits));
  return result;
}

// (value & mask) ^ bits likewise.
__device__ __forceinline__ std::uint32_t masked_xor(std::uint32_t value, std::uint32_t mask, std::uint32_t bits) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(value), "r"(mask), "r"(bits));
  return result;
}

// Reads past the L1 cache: data that an earlier kernel wrote.
__device__ __forceinline__ uint4 load_u128(const void* pointer) {
  uint4 value;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(pointer)
               : "memory");
  return value;
}

// 8 bytes likewise.
__device__ __forceinline__ uint2 load_u64(const void* pointer) {
  uint2 value;
  asm volatile("ld.global.cg.v2.u32 {%0,%1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(pointer) : "memory");
  return value;
}

// 16 bytes to shared memory past the registers; copies_done() waits for all that this thread started.
__device__ __forceinline__ void copy16(std::uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}
__device__ __forceinline__ void copies_done() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// What the compiler knows of these values is forgotten: what was computed from them is computed again, where keeping it
// would take registers.
__device__ __forceinline__ void forget(uint2& value) {
  asm volatile("" : "+r"(value.x), "+r"(value.y));
}
// The other way round: how it was computed is forgotten, so that it stays in a register and is not computed again.
__device__ __forceinline__ void keep(std::uint32_t& value) {
  asm volatile("" : "+r"(value));
}

}  // namespace facet::linear
