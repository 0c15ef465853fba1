// What the machine itself can do, measured beside the thing that is judged by it.
#pragma once

#include <cstdint>
#include <vector>

namespace facet {

// Bytes a second read from memory by `threads` threads (at least 1), each its own part of a buffer of `bytes`, which
// should be several times the last-level cache. One value for each of `repeats` passes, after a pass that is not
// counted.
std::vector<double> measure_read_bandwidth(std::int64_t threads, std::int64_t bytes, std::int64_t repeats);

}  // namespace facet
