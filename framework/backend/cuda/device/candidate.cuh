// Logits in an order that whole numbers have.
#pragma once

#include <cmath>
#include <cstdint>

namespace facet::cuda {

// Orders as logits do, with -0 and 0 equal.
__device__ inline std::uint32_t key_of(float logit) {
  const std::uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// A candidate as one word that orders as (logit, lowest id first): the float's bits made monotone, then the inverted
// id. Zero is below every real candidate; kBad is above all.
using Candidate = unsigned long long;
inline constexpr Candidate kBad = ~0ull;

__device__ inline Candidate candidate(float logit, std::uint32_t id) {
  if (!(logit < INFINITY)) return kBad;  // NaN or plus infinity
  if (logit == -INFINITY) return 0;
  return static_cast<Candidate>(key_of(logit)) << 32 | (0xfffffffeu - id);
}
__device__ inline std::int32_t id_of(Candidate candidate) {
  return static_cast<std::int32_t>(0xfffffffeu - static_cast<std::uint32_t>(candidate));
}

}  // namespace facet::cuda
