// Where the text model lies inside a checkpoint, and what else is in there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "facet/checkpoint/checkpoint.h"

namespace facet {

// "model." (text checkpoint) or "model.language_model." (nested multimodal checkpoint): what stands before "layers.0."
// and "embed_tokens". Throws Error(checkpoint) when neither or both occur, with some names that were found.
std::string weight_prefix(const Checkpoint& checkpoint);

// Tensors that the text model has no use for.
struct SkippedModules {
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;
  std::map<std::string, std::int64_t> by_module;  // "model.vision_tower" -> tensors

  // "skipped 12 tensors (1.50 MiB): model.audio_tower 4, model.vision_tower 8"; "" when none.
  std::string text() const;
};

// True for a tensor or module of a vision or audio tower, embedder or projector: its name holds "vision", "audio" or
// "multi_modal".
bool names_other_modality(std::string_view name) noexcept;

// Counts tensors of vision and audio towers, embedders and projectors: every tensor outside `prefix` that
// names_other_modality().
SkippedModules skipped_modules(const Checkpoint& checkpoint, std::string_view prefix);

}  // namespace facet
