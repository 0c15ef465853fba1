// What this machine can do right now: the yardstick of every result of the same run.
#pragma once

#include "bench_host.h"

namespace facet::bench {

struct MachineLimits {
  double read_gbps = 0;  // DRAM read by all workers
  double vnni_gops = 0;  // vpdpbusd, a multiplication and an addition count as two; 0 where the processor has none
  double bf16_gops = 0;  // vdpbf16ps
  double fma_gops = 0;   // vfmadd231ps on 512 bits
};

// wall: time on the clock, what a user sees. processor: time of the slowest worker, which other programs on the machine
// disturb less (caches and memory are still shared).
enum class Clock { wall, processor };

// Seconds between construction and elapsed(), on one of the clocks.
class Stopwatch {
 public:
  Stopwatch(const BenchHost& host, Clock clock);
  double elapsed() const;

 private:
  const BenchHost& host_;
  Clock clock_;
  double wall_;
  double thread_;
  double slowest_;
  double caller_;
};

// Seconds that all workers take to read `bytes` (rounded down to pages of 4 KiB, at least one) at `data`, 64-byte
// aligned or not. 0 where the processor has no AVX-512.
double read_seconds(BenchHost& host, Clock clock, const void* data, std::uint64_t bytes);

// About a second. The best of several tries each: other load on the machine can only make it slower.
MachineLimits measure_limits(BenchHost& host, Clock clock);

}  // namespace facet::bench
