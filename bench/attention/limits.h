// What this machine can do at best: the measure that attention is held against.
#pragma once

#include "pool_host.h"

namespace facet::bench {

// Features of this processor as bits of abi::CpuFeature.
std::uint64_t machine_features();
// GB/s of reading memory with every worker, 16 MiB at a time; the best of many.
double read_bandwidth(PoolHost& host);
// fp32 GFLOP/s of independent FMA chains on the widest vectors, every worker, the best of many.
double fma_peak(PoolHost& host);

}  // namespace facet::bench
