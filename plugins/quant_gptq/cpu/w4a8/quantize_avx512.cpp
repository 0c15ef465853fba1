#include <immintrin.h>

#include "w4a8/w4a8_kernels.h"

namespace facet::linear {

float quantize_avx512(const float* input, std::int64_t count, std::int64_t padded, std::int8_t* codes) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  __m512 values[kActivationGroup / 16];
  const int vectors = static_cast<int>(padded / 16);
  for (int v = 0; v < vectors; ++v) {
    const std::int64_t left = count - 16 * v;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffffu : left <= 0 ? 0u : (1u << left) - 1u);
    values[v] = _mm512_maskz_loadu_ps(mask, input + 16 * v);
    // As integers, magnitudes order like the floats, with infinity and NaN at the top.
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(values[v]), magnitude));
  }
  const unsigned bits = _mm512_reduce_max_epu32(largest);
  float top;
  __builtin_memcpy(&top, &bits, sizeof top);
  const bool finite = bits < 0x7f800000u;
  // Below 1e-30 the inverse would overflow; such a group is zero.
  const bool usable = finite && top > 1e-30f;
  const __m512 inverse = _mm512_set1_ps(usable ? 127.0f / top : 0.0f);
  for (int v = 0; v < vectors; ++v) {
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(values[v], inverse));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16 * v), _mm512_cvtsepi32_epi8(rounded));
  }
  return usable ? top / 127.0f : finite ? 0.0f : __builtin_nanf("");
}

}  // namespace facet::linear
