// What a pipeline takes, by category, known before anything is allocated and equal to what is then allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace facet {

// Tags of the memory account; MemoryPlan has one member for each.
inline constexpr const char* kWeightsTag = "weights";
inline constexpr const char* kKvTag = "kv";
inline constexpr const char* kWorkspaceTag = "workspace";
inline constexpr const char* kActivationsTag = "activations";

struct MemoryAccount {
  std::string tag;
  std::uint64_t bytes = 0;       // now
  std::uint64_t peak_bytes = 0;  // since the start
};

struct MemoryPlan {
  std::uint64_t weights = 0;  // packed copies
  std::uint64_t weights_unpacked =
      0;  // kept beside the file: scales and zero codes of weights read in place, converted heads
  std::uint64_t weights_mapped =
      0;  // read in place from the mapped file: no allocation, pages come as they are touched
  std::uint64_t kv_sliding = 0;
  std::uint64_t kv_global = 0;
  std::uint64_t workspace = 0;
  std::uint64_t activations = 0;
  std::int64_t sequences_that_fit = 0;  // of max_context tokens each, in the planned KV pools

  std::uint64_t kv() const { return kv_sliding + kv_global; }
  // Everything that is allocated (not weights_mapped).
  std::uint64_t allocated() const { return weights + weights_unpacked + kv() + workspace + activations; }
};

// Blocks handed out in order from one allocation; the same calls give the same offsets, so one code path counts and
// places.
class Arena {
 public:
  // Bytes from the start of the arena, 64-byte aligned.
  std::uint64_t add(std::uint64_t bytes) {
    const std::uint64_t offset = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return offset;
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
};

}  // namespace facet
