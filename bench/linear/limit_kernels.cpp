#include "limit_kernels.h"

#include <immintrin.h>

namespace facet::bench {

namespace {

volatile std::int64_t sink;

template <typename Step>
void chains(Step step) {
  // By name, not in an array: GCC would keep an array in memory.
  __m512i a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{}, k{}, l{}, m{}, n{}, o{}, p{};
  for (std::int64_t round = 0; round < kPeakRounds; ++round) {
    a = step(a), b = step(b), c = step(c), d = step(d), e = step(e), f = step(f), g = step(g), h = step(h);
    i = step(i), j = step(j), k = step(k), l = step(l), m = step(m), n = step(n), o = step(o), p = step(p);
    // Keeps the compiler from folding the chains.
    asm volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h));
    asm volatile("" : "+v"(i), "+v"(j), "+v"(k), "+v"(l), "+v"(m), "+v"(n), "+v"(o), "+v"(p));
  }
  a = (a ^ b) ^ (c ^ d) ^ (e ^ f) ^ (g ^ h) ^ (i ^ j) ^ (k ^ l) ^ (m ^ n) ^ (o ^ p);
  sink = _mm512_reduce_add_epi64(a);
}

}  // namespace

void read_pages(void* data, std::int64_t begin, std::int64_t end, std::uint32_t) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  __m512i sums[4] = {};
  for (std::int64_t line = begin * 64; line < end * 64; line += 4) {
    for (int i = 0; i < 4; ++i) {
      const std::uint8_t* address = bytes + (line + i) * 64;
      _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(address) + 4096), _MM_HINT_T0);
      sums[i] = _mm512_add_epi8(sums[i], _mm512_loadu_si512(address));
    }
  }
  sink = _mm512_reduce_add_epi64(_mm512_add_epi8(_mm512_add_epi8(sums[0], sums[1]), _mm512_add_epi8(sums[2], sums[3])));
}

void run_vnni(void*, std::int64_t, std::int64_t, std::uint32_t) {
  const __m512i one = _mm512_set1_epi8(1);
  chains([=](__m512i sum) { return _mm512_dpbusd_epi32(sum, one, one); });
}

void run_bf16(void*, std::int64_t, std::int64_t, std::uint32_t) {
  const auto one = (__m512bh)_mm512_set1_epi16(0x3f80);
  chains([=](__m512i sum) { return _mm512_castps_si512(_mm512_dpbf16_ps(_mm512_castsi512_ps(sum), one, one)); });
}

void run_fma(void*, std::int64_t, std::int64_t, std::uint32_t) {
  const __m512 one = _mm512_set1_ps(1.0f);
  chains([=](__m512i sum) { return _mm512_castps_si512(_mm512_fmadd_ps(one, one, _mm512_castsi512_ps(sum))); });
}

}  // namespace facet::bench
