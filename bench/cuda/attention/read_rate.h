// The read bandwidth of the device, beside every figure that is bound by it.
#pragma once

namespace facet::bench {

// TB/s of summing 4 GiB; the best of several runs. Throws std::runtime_error on a CUDA error.
double measured_read_rate();

}  // namespace facet::bench
