// GPTQ tensors: which modules a file holds, and one of them in canonical form.
#pragma once

#include <cstdint>
#include <string>

#include "facet/checkpoint/linear_weight.h"

namespace facet::checkpoint_detail {

// The packed form of `module`, null when the file holds it dense.
const GptqModule* gptq_module(const Checkpoint& checkpoint, const QuantizationConfig& config,
                              const std::string& module);

// See load_linear. `packed` is what read_quantization() found for `module`.
LinearWeight load_gptq(const Checkpoint& checkpoint, const GptqSettings& settings, const GptqModule& packed,
                       const std::string& module, std::int64_t out_features, std::int64_t in_features);

}  // namespace facet::checkpoint_detail
