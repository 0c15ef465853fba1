// Calibration sequences side by side, as a device takes them.
#pragma once

#include <cstdint>
#include <vector>

namespace facet::gemma4 {

// Sequences that go through a layer together, in the order in which they were given.
struct CalibrationBatch {
  std::size_t first = 0;
  std::vector<std::int32_t> token_begin;  // [sequences + 1]
  std::vector<std::int32_t> ids, positions, sequence;
  std::int64_t longest = 0;
  std::int64_t tokens() const { return token_begin.back(); }
  std::size_t sequences() const { return token_begin.size() - 1; }
};

// All sequences in their order, as many in a batch as have at most `tokens` tokens together; a longer sequence is
// alone.
std::vector<CalibrationBatch> make_batches(const std::vector<std::vector<std::int32_t>>& sequences,
                                           std::int64_t tokens);

}  // namespace facet::gemma4
