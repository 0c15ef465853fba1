// A machine that runs CUDA kernels compiled as host code: all threads of the blocks of a cluster as fibers of one
// thread of the operating system. What it is for, and what it cannot see, is in README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace facet::emulated {

// What ends a run: an instruction used as it must not be, or a deadlock.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What the runtime tells of the device; tests change it between launches.
struct Device {
  int multiprocessors = 132;
  int shared_per_block = 227 << 10;
  int shared_per_multiprocessor = 228 << 10;
  int shared_reserve = 1 << 10;  // of a block
  // Clusters of more than two blocks find fewer places than multiprocessors would make.
  int lost_clusters = 1;
};
Device& device();

// Every choice of a run (which thread goes on, when a copy arrives) follows from this and the number of runs since.
void set_seed(std::uint64_t seed);

struct Launch {
  unsigned grid;     // blocks
  unsigned cluster;  // blocks of a cluster
  unsigned threads;  // of a block
  std::uint32_t shared_bytes;
  // Along the first axis, 0: all; blocks along the second as well.
  unsigned grid_x = 0;
  unsigned grid_y = 1;
  unsigned threads_x = 0;
};

// Runs every thread of the grid to its end. Throws Fault.
void run(const Launch& launch, const std::function<void()>& kernel);

// Runs that ended without a fault.
std::uint64_t runs_done();

}  // namespace facet::emulated
