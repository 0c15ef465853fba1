// AVX-512 (F, BW, DQ, VL): 16 lanes.
#include <immintrin.h>

#include "flash/kernels.h"

namespace facet::attention {

namespace {

struct Simd {
  using V = __m512;
  static constexpr const char* kName = "avx512";
  static constexpr std::int64_t kLanes = 16;
  // 16 of 32 registers hold sums: enough chains to cover the 4 cycles of an FMA, and 8 loads serve 16 FMAs.
  static constexpr int kTileRows = 4;
  static constexpr int kTileVectors = 4;

  static V zero() { return _mm512_setzero_ps(); }
  static V set1(float x) { return _mm512_set1_ps(x); }
  static V load(const float* from) { return _mm512_loadu_ps(from); }
  static V load(const std::uint16_t* from) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }
  static V load(const std::int8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  // Eight elements and eight zeros; reads nothing past the eight.
  static V load_half(const float* from) { return _mm512_maskz_loadu_ps(0xff, from); }
  static V load_half(const std::uint16_t* from) {
    return widen(_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static V load_half(const std::int8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static void store(float* to, V x) { _mm512_storeu_ps(to, x); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm512_max_ps(b, a); }  // a NaN in the first argument is kept
  static V round(V x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // x * 2^n for whole n that keep the result normal.
  static V scale_by_power(V x, V n) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
  }
  static V zero_below(V x, V test, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test, set1(limit), _CMP_NLT_UQ), x);
  }
  static float first(V x) { return _mm512_cvtss_f32(x); }
  static float sum(V x) {
    const __m128 pairs = _mm_hadd_ps(quarter(x), quarter(x));
    return _mm_cvtss_f32(_mm_hadd_ps(pairs, pairs));
  }
  static void sum4(V a, V b, V c, V d, float* to) {
    _mm_storeu_ps(to, _mm_hadd_ps(_mm_hadd_ps(quarter(a), quarter(b)), _mm_hadd_ps(quarter(c), quarter(d))));
  }
  static float largest(V x) { return _mm512_reduce_max_ps(x); }

 private:
  static V widen(__m256i halves) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)); }
  static __m128 quarter(V x) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  }
};

#include "flash/kernel_body.inc"

}  // namespace

const Kernels& avx512_kernels() {
  return kKernels;
}

}  // namespace facet::attention
