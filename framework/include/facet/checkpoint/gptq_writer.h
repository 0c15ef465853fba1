// Quantized modules in the tensors and the config entry of GPTQ, for programs that read no compressed-tensors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "facet/checkpoint/quantized_writer.h"

namespace facet {

// How a checkpoint with these groups stores its zero points: symmetric ones as "gptq", which every reader knows; with
// an asymmetric group as "gptq_v2", because "gptq" has no sure way to store the zero code 0.
GptqZeros gptq_zeros(const std::vector<QuantizationGroup>& groups);

// Declares the tensors of one module with `writer`: qweight, qzeros, scales (F16) and g_idx, laid out as load_linear()
// reads them, groups contiguous. `produce` is called once, when the first of them is written; parts are freed once
// written. Throws Error(run) for a scheme other than 4 bits. Errors from write(): Error(run) when the sizes of what
// `produce` returns do not fit the scheme, or a scale is not exact in F16 (a bf16 scale is from 2^-17 to 65,280).
void add_gptq_module(SafetensorsWriter& writer, const std::string& module, const QuantizationScheme& scheme,
                     GptqZeros zeros, std::int64_t out_features, std::int64_t in_features,
                     std::function<QuantizedMatrix()> produce);

// `config_json` with a GPTQ "quantization_config"; what else it holds is kept in order. The group of class "Linear"
// gives the settings of every module, the other groups and `ignore` become rules of "dynamic". Throws Error(checkpoint)
// when it is not a JSON object or already has one, and Error(usage) for what GPTQ files cannot say: no group of class
// "Linear", bits other than 4, a quantized embedding.
std::string with_gptq_config(const std::string& config_json, const std::vector<QuantizationGroup>& groups,
                             const std::vector<std::string>& ignore);

}  // namespace facet
