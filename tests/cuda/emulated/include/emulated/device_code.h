// Included before all else where device code is compiled as host code: the words of CUDA C++ that nvcc knows by itself.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "instructions.h"
#include "launch.h"

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __maxnreg__
#define __maxnreg__(...)
#undef __grid_constant__
#define __grid_constant__

// Read as the numbers that they are to the thread that reads them.
template <unsigned (*NUMBER)(int), int AXIS>
struct EmulatedNumber {
  operator unsigned() const { return NUMBER(AXIS); }
};
template <unsigned (*NUMBER)(int)>
struct EmulatedIndex {
  EmulatedNumber<NUMBER, 0> x;
  EmulatedNumber<NUMBER, 1> y;
  EmulatedNumber<NUMBER, 2> z;
};
inline constexpr EmulatedIndex<facet::emulated::thread_index> threadIdx{};
inline constexpr EmulatedIndex<facet::emulated::block_index> blockIdx{};
inline constexpr EmulatedIndex<facet::emulated::grid_size> gridDim{};
inline constexpr EmulatedIndex<facet::emulated::block_size> blockDim{};

inline int min(int a, int b) {
  return a < b ? a : b;
}
inline int max(int a, int b) {
  return a > b ? a : b;
}
inline unsigned max(unsigned a, unsigned b) {
  return a > b ? a : b;
}

inline void __syncthreads() {
  facet::emulated::block_sync();
}
inline void __syncwarp(unsigned mask = ~0u) {
  facet::emulated::warp_sync(mask);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  const auto word_of = [&](std::uint32_t word) {
    return facet::emulated::shuffle(mask, word, facet::emulated::Shuffle::index, lane);
  };
  if constexpr (sizeof(T) == sizeof(std::uint64_t)) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const std::uint64_t low = word_of(static_cast<std::uint32_t>(bits));
    return std::bit_cast<T>(std::uint64_t{word_of(static_cast<std::uint32_t>(bits >> 32))} << 32 | low);
  } else {
    return std::bit_cast<T>(word_of(std::bit_cast<std::uint32_t>(value)));
  }
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return std::bit_cast<T>(facet::emulated::shuffle(mask, std::bit_cast<std::uint32_t>(value),
                                                   facet::emulated::Shuffle::exclusive_or, lanes));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes) {
  return std::bit_cast<T>(facet::emulated::shuffle(mask, std::bit_cast<std::uint32_t>(value),
                                                   facet::emulated::Shuffle::down, static_cast<int>(lanes)));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return facet::emulated::ballot(mask, predicate != 0);
}
inline int __all_sync(unsigned mask, int predicate) {
  return facet::emulated::ballot(mask, predicate != 0) == mask ? 1 : 0;
}
inline int __any_sync(unsigned mask, int predicate) {
  return facet::emulated::ballot(mask, predicate != 0) != 0 ? 1 : 0;
}

inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
inline float __int_as_float(int bits) {
  return std::bit_cast<float>(bits);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __expf(float value) {
  return std::exp(value);
}
inline float rsqrtf(float value) {
  return 1.0f / std::sqrt(value);
}

inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}

// Memory has one order here, and one thread runs at a time.
inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* counter, unsigned more) {
  const unsigned before = *counter;
  *counter += more;
  return before;
}
template <typename T>
T __ldcg(const T* place) {
  return *place;
}
template <typename T>
void __stcg(T* place, T value) {
  *place = value;
}

inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
inline int __ffs(int bits) {
  return __builtin_ffs(bits);
}
// Four bytes of eight, by the nibbles of `selector`.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7u)) & 255u) << (8 * i);
  return result;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (shift & 31u));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(std::uint64_t{a} * b >> 32);
}
inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += static_cast<std::int8_t>(a >> i) * static_cast<std::int8_t>(b >> i);
  return sum;
}
// The larger of each half.
inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return max(a & 0xffff0000u, b & 0xffff0000u) | max(a & 0xffffu, b & 0xffffu);
}

inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return __floats2bfloat162_rn(std::fma(__bfloat162float(a.x), __bfloat162float(b.x), __bfloat162float(c.x)),
                               std::fma(__bfloat162float(a.y), __bfloat162float(b.y), __bfloat162float(c.y)));
}
