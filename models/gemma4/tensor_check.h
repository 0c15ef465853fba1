// The checkpoint held against the model before anything is allocated.
#pragma once

#include "gemma4/gemma4_plan.h"

namespace facet::gemma4 {

// Throws Error(checkpoint) that lists every tensor the model needs and the checkpoint lacks, with the layer. Tensors
// that the model does not know are counted in a warning; those of vision and audio parts are expected and not counted.
void check_tensors(const Checkpoint& checkpoint, const CheckpointFacts& facts);

}  // namespace facet::gemma4
