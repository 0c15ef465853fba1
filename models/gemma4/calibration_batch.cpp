#include "gemma4/calibration_batch.h"

#include <algorithm>

namespace facet::gemma4 {
namespace {

// A cache has room for the longest sequence in every slot, so very short sequences do not fill a batch.
constexpr std::size_t kMostSequences = 64;

}  // namespace

std::vector<CalibrationBatch> make_batches(const std::vector<std::vector<std::int32_t>>& sequences,
                                           std::int64_t tokens) {
  std::vector<CalibrationBatch> batches;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto length = static_cast<std::int64_t>(sequences[i].size());
    const bool full =
        batches.empty() || batches.back().tokens() + length > tokens || batches.back().sequences() == kMostSequences;
    if (full) {
      batches.emplace_back();
      batches.back().first = i;
      batches.back().token_begin = {0};
    }
    CalibrationBatch& batch = batches.back();
    for (std::int32_t position = 0; position < length; ++position) batch.positions.push_back(position);
    batch.sequence.insert(batch.sequence.end(), sequences[i].size(), static_cast<std::int32_t>(batch.sequences()));
    batch.ids.insert(batch.ids.end(), sequences[i].begin(), sequences[i].end());
    batch.token_begin.push_back(static_cast<std::int32_t>(batch.ids.size()));
    batch.longest = std::max(batch.longest, length);
  }
  return batches;
}

}  // namespace facet::gemma4
