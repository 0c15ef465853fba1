// AVX2 with FMA: 8 lanes.
#include <immintrin.h>

#include "flash/kernels.h"

namespace facet::attention {

namespace {

struct Simd {
  using V = __m256;
  static constexpr const char* kName = "avx2";
  static constexpr std::int64_t kLanes = 8;
  // 8 of 16 registers hold sums: 4 keys, their query row and a temporary fit beside them.
  static constexpr int kTileRows = 2;
  static constexpr int kTileVectors = 4;

  static V zero() { return _mm256_setzero_ps(); }
  static V set1(float x) { return _mm256_set1_ps(x); }
  static V load(const float* from) { return _mm256_loadu_ps(from); }
  static V load(const std::uint16_t* from) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static V load(const std::int8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  template <typename T>
  static V load_half(const T* from) {  // never needed: head_dim is a multiple of 8
    return load(from);
  }
  static void store(float* to, V x) { _mm256_storeu_ps(to, x); }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm256_max_ps(b, a); }  // a NaN in the first argument is kept
  static V round(V x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // x * 2^n for whole n that keep the result normal.
  static V scale_by_power(V x, V n) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
  }
  static V zero_below(V x, V test, float limit) {
    return _mm256_and_ps(x, _mm256_cmp_ps(test, set1(limit), _CMP_NLT_UQ));
  }
  static float first(V x) { return _mm256_cvtss_f32(x); }
  static float sum(V x) {
    const __m128 pairs = _mm_hadd_ps(half(x), half(x));
    return _mm_cvtss_f32(_mm_hadd_ps(pairs, pairs));
  }
  static void sum4(V a, V b, V c, V d, float* to) {
    _mm_storeu_ps(to, _mm_hadd_ps(_mm_hadd_ps(half(a), half(b)), _mm_hadd_ps(half(c), half(d))));
  }
  static float largest(V x) {
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
  }

 private:
  static __m128 half(V x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }
};

#include "flash/kernel_body.inc"

}  // namespace

const Kernels& avx2_kernels() {
  return kKernels;
}

}  // namespace facet::attention
