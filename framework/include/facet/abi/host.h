// What the host offers a plugin: logging, memory, a parallel loop, and what the processor can do.
#pragma once

#include "facet/abi/types.h"

namespace facet::abi {

enum class LogLevel : std::uint32_t { trace = 0, debug = 1, info = 2, warn = 3, error = 4 };

// Bits of HostTable::cpu_features. The host reads the processor and masks by `engine.cpu_isa`, so a plugin never asks
// cpuid.
enum CpuFeature : std::uint64_t {
  kCpuAvx2 = 1u << 0,        // AVX2, FMA and F16C
  kCpuAvx512 = 1u << 1,      // AVX-512 F, BW, DQ and VL
  kCpuAvx512Vnni = 1u << 2,  // vpdpbusd on 512 bits
  kCpuAvx512Bf16 = 1u << 3,  // vdpbf16ps on 512 bits
};

// One piece [begin, end) of a parallel loop; worker is in [0, worker_count). Must not throw.
using ParallelBody = void (*)(void* data, std::int64_t begin, std::int64_t end, std::uint32_t worker);

// The table outlives every instance. All functions may be called from any thread, except parallel_for from inside a
// body.
struct HostTable {
  std::uint32_t size;
  std::uint32_t contract_version;
  void* context;
  std::uint64_t cpu_features;
  std::uint32_t worker_count;  // threads that parallel_for can use, at least 1
  std::uint32_t reserved;
  void (*log)(void* context, LogLevel level, const char* text, std::uint64_t size);
  // Host memory, zero-filled; null when there is none. tag names the use in the memory account and must be a literal.
  void* (*allocate)(void* context, std::uint64_t bytes, std::uint64_t alignment, const char* tag);
  void (*deallocate)(void* context, void* memory, std::uint64_t bytes);
  // Calls body over [0, count) in pieces of at least grain indices (the last may be shorter) and returns when all are
  // done. Pieces are assigned statically: the same count, grain and worker_count give the same pieces, so sums can be
  // reproduced.
  void (*parallel_for)(void* context, std::int64_t count, std::int64_t grain, void* data, ParallelBody body);
};

}  // namespace facet::abi
