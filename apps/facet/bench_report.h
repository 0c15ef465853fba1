// facet bench: what was measured, as JSON and as text.
#pragma once

#include "bench_measure.h"

namespace facet::cli {

// {"median", "min", "max"}; null for no values.
Json spread_json(const std::vector<double>& values);
// bandwidth: GB/s of the memory the weights lie in, empty when it was not measured.
Json bench_shape_json(const BenchShape& shape, BenchSamples samples, std::uint64_t bytes,
                      const std::vector<double>& bandwidth);
void print_bench(const Json& document);

}  // namespace facet::cli
