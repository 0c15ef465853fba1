// --memory-limit: what a pipeline's plan takes of the memory that is short, and what would fit.
#pragma once

#include <cstdint>
#include <vector>

#include "common.h"

namespace facet::cli {

struct MemoryCategory {
  const char* name;
  std::uint64_t bytes;
};

// A limit counts the device's memory on a GPU; on the CPU everything that is allocated and the mapped weights, whose
// pages every step touches.
struct MemoryUse {
  std::vector<MemoryCategory> limited;
  std::vector<MemoryCategory> host;  // beside the device; empty on the CPU
  std::uint64_t total() const;       // of `limited`
};

MemoryUse memory_use(const gemma4::Pipeline& pipeline);

// What to change so that the limit holds, {"max_sequences", "max_context", "prefill_chunk"}, each alone and only where
// it is enough.
Json what_fits(const gemma4::Pipeline& pipeline, const GlobalOptions& global, std::uint64_t limit);
// Throws Error(run) that names configuration, limit, largest categories and what fits.
[[noreturn]] void refuse_plan(const gemma4::Pipeline& pipeline, std::uint64_t limit, const std::string& limit_name,
                              const Json& fits);

// Throws as refuse_plan() where the plan is above --memory-limit, what is free on a GPU whose memory this process has
// not filled yet or, on the CPU, what the machine has at all. To be called before weights are read.
void check_memory_limit(const gemma4::Pipeline& pipeline, const GlobalOptions& global);
void add_memory_limit_option(CLI::App& command, GlobalOptions& global);

}  // namespace facet::cli
