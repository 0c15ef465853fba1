#include <immintrin.h>

#include "rows16/round_pairs.h"

namespace facet::linear {

void round_pairs_avx512_bf16(const float* input, std::int64_t count, std::int64_t padded, std::uint16_t* output) {
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  for (std::int64_t k = 0; k < padded; k += 16) {
    const std::int64_t left = count - k;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffffu : left <= 0 ? 0u : (1u << left) - 1u);
    const __m512 values = _mm512_permutexvar_ps(order, _mm512_maskz_loadu_ps(mask, input + k));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(output + k), (__m256i)_mm512_cvtneps_pbh(values));
  }
}

}  // namespace facet::linear
