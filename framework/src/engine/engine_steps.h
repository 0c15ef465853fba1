// What the parts of a step share.
#pragma once

#include "facet/engine/engine.h"
#include "sequence.h"

namespace facet {

// One row of the batch whose logits somebody wants.
struct WantedRow {
  std::size_t sequence;  // index into the batch
  std::int64_t offset;   // in the sequence's tokens of this step
  bool chosen;           // only its token counts, and the model can choose it
};

struct Engine::Batch {
  std::vector<std::int32_t> ids, positions, sequence, token_begin, first_position;
  std::vector<std::uint64_t> sequence_ids;
  std::int64_t max_new_tokens = 0, max_rows = 0;
  std::vector<WantedRow> wanted;
  std::vector<std::int32_t> wanted_rows;  // row in the batch of each of them
};

// A step whose tokens nobody has read: one row each of these sequences, null where one ended meanwhile.
struct Engine::Flight {
  std::vector<Sequence*> sequences;
};

}  // namespace facet
