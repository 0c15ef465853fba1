// Model::forward driven by hand, without engine and scheduler: hidden states and logits of every token of one sequence.
#pragma once

#include <vector>

#include "runs.h"

namespace facet::test {

struct DirectRun {
  std::vector<std::vector<float>> hidden;  // [layers + 1] of [tokens, width]
  std::vector<float> logits;               // [tokens, vocabulary]
  std::int64_t width = 0;
  std::int64_t vocabulary = 0;
};

// Feeds `ids` in chunks of at most `chunk` tokens.
DirectRun run_directly(gemma4::Pipeline& pipeline, const Ids& ids, std::int64_t chunk);

// Largest |a - b| over the root mean square of b, for rows that begin at `first_row` of a; and where it is.
struct Deviation {
  double relative = 0;
  std::size_t at = 0;
};
Deviation deviation(const std::vector<float>& values, std::size_t first, const std::vector<float>& right);

}  // namespace facet::test
