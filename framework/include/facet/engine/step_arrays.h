// The arrays of one step in device memory: one copy a step, at addresses that depend on the counts alone, so that a
// recorded step finds them again.
#pragma once

#include <cstdint>
#include <vector>

#include "facet/engine/model.h"

namespace facet {

class StepArrays {
 public:
  // max_context: rows of one sequence, which bounds the block tables.
  StepArrays(const KvManager& kv, std::int64_t max_tokens, std::int64_t max_sequences, std::int64_t max_context);
  // Device memory that upload() writes at most.
  std::uint64_t bytes() const { return bytes_; }

  // Copies `input` and the block tables of kv's current step to `memory`, padded to `tokens` rows and `sequences`
  // sequences: padding rows belong to no sequence (-1), padding sequences have no token. Points the views of kv at the
  // copies. Throws Error(run) naming the cache plugin when its table is larger than planned.
  void upload(Backend& backend, void* memory, const StepInput& input, KvManager& kv, std::int64_t tokens,
              std::int64_t sequences);

  // What upload() made, in device memory.
  const std::int32_t* ids = nullptr;        // [tokens]
  const std::int32_t* positions = nullptr;  // [tokens]
  const std::int32_t* sequence = nullptr;   // [tokens]
  const std::int32_t* rows = nullptr;       // [tokens]: 0, 1, 2, ...
  abi::BatchView batch{};

 private:
  std::int64_t max_context_;
  std::uint64_t bytes_ = 0;
  std::vector<std::int32_t> staging_;
};

}  // namespace facet
