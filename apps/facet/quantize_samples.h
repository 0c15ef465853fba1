// Calibration samples for `facet quantize`.
#pragma once

#include "gemma4/gemma4_config.h"
#include "quantize_settings.h"

namespace facet::cli {

using Sequences = std::vector<std::vector<std::int32_t>>;

// At most settings.samples sequences of at most settings.length ids, spread evenly over the file.
//   FILE.jsonl: one JSON array of ids a line; longer ones are cut.
//   any other:  UTF-8 text, encoded with the checkpoint's tokenizer and cut into pieces that each begin with what the
//               tokenizer puts in front of a text (BOS).
// Throws Error(usage) naming the file when it cannot be read or holds nothing.
Sequences read_samples(const QuantizeSettings& settings);

// Throws as gemma4::check_sequences() does, naming the file too.
void require_fit(const Sequences& sequences, const std::string& file, const gemma4::ModelConfig& model);

std::int64_t token_count(const Sequences& sequences);
// Identifies ids and lengths, for recognising an interrupted run.
std::uint64_t fingerprint(const Sequences& sequences);

}  // namespace facet::cli
