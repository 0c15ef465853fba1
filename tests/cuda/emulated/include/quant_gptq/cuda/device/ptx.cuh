// What the header of this name does, by the emulated machine.
#pragma once

#include "quant_gptq/cuda/device/sdk_names.cuh"
#include "quant_gptq/cuda/device/values.cuh"

namespace facet::linear {

inline void mma_u8s8(int (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                     std::uint32_t b0, std::uint32_t b1, const int (&c)[4]) {
  const std::uint32_t a[4] = {a0, a1, a2, a3};
  const std::uint32_t b[2] = {b0, b1};
  emulated::mma_u8s8(d, a, b, c);
}

inline void store_async(std::uint32_t target, const float4& value, std::uint32_t barrier) {
  emulated::store_async(target, &value, sizeof value, barrier);
}
inline void store_async(std::uint32_t target, const float2& value, std::uint32_t barrier) {
  emulated::store_async(target, &value, sizeof value, barrier);
}

inline std::uint32_t masked_or(std::uint32_t value, std::uint32_t mask, std::uint32_t bits) {
  return (value & mask) | bits;
}
inline std::uint32_t masked_xor(std::uint32_t value, std::uint32_t mask, std::uint32_t bits) {
  return (value & mask) ^ bits;
}

inline uint4 load_u128(const void* pointer) {
  return *static_cast<const uint4*>(pointer);
}
inline uint2 load_u64(const void* pointer) {
  return *static_cast<const uint2*>(pointer);
}

using emulated::copies_done, emulated::copy16;

inline void forget(uint2&) {}
inline void keep(std::uint32_t&) {}

}  // namespace facet::linear
