// Calibrated quantization: layer by layer, each layer's inputs from the layers quantized before it.
#pragma once

#include "quantize_bench.h"
#include "quantize_progress.h"
#include "quantize_work.h"

namespace facet::cli {

// Rows whose inputs are in memory at once. Sums are in float over this many, in double beyond.
inline constexpr std::int64_t kBatchTokens = 8192;

// Names of the work folder's parts.
std::string layer_part(std::size_t layer);
inline constexpr const char* kHeadPart = "head";

// The embedding as readers of the result will have it: quantized when the settings say so, and saved in `work`.
LinearWeight quantize_head(const Workbench& bench, WorkFolder* work);

// Quantizes every layer that `work` does not hold yet and saves it there. Throws Error(run) for a calibration input
// that is NaN or infinite, naming sample and module; Error(checkpoint) for weights that are.
void quantize_layers(const Workbench& bench, const Sequences& samples, WorkFolder& work,
                     QuantizeProgressLine& progress);

// Work of one layer, in arbitrary units, for progress.
double layer_cost(const Workbench& bench, std::size_t layer, std::int64_t tokens);

// Matrices of a finished layer as floats: quantized ones from `work`, the others from the source.
std::vector<float> finished_matrix(const Workbench& bench, const WorkFolder& work, std::size_t layer,
                                   const gemma4::StageModule& module, std::int64_t in_features);

}  // namespace facet::cli
