// Loops that reach the limits, as bodies of a parallel loop. AVX-512 only; nothing else may stand in their file, which
// is compiled for it.
#pragma once

#include <cstdint>

namespace facet::bench {

inline constexpr std::int64_t kPeakRounds = 2'000'000;
inline constexpr int kPeakChains = 16;  // independent sums, so that latency does not bound the rate

// Reads pages [begin, end) of 4 KiB of data.
void read_pages(void* data, std::int64_t begin, std::int64_t end, std::uint32_t worker);

// kPeakRounds * kPeakChains instructions each.
void run_vnni(void*, std::int64_t, std::int64_t, std::uint32_t);
void run_bf16(void*, std::int64_t, std::int64_t, std::uint32_t);
void run_fma(void*, std::int64_t, std::int64_t, std::uint32_t);

}  // namespace facet::bench
