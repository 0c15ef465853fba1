// Calibrated quantization: layer by layer, each layer's inputs from the layers quantized before it.
#pragma once

#include "quantize_progress.h"
#include "quantize_walk.h"
#include "quantize_work.h"

namespace facet::cli {

// Name of the work folder's part for a layer.
std::string layer_part(std::size_t layer);

// Quantizes every layer and the output head, as far as `work` does not hold them yet, and saves them there. Throws
// Error(run) for a calibration input that is NaN or infinite, naming sample and module; Error(checkpoint) for weights
// that are.
void quantize_layers(const Workbench& bench, const Sequences& samples, CalibrationWalk& walk, WorkFolder& work,
                     QuantizeProgressLine& progress);

// All the work, in arbitrary units, for progress.
double total_cost(const Workbench& bench, std::int64_t tokens);

// A module of a finished layer: quantized ones from `work`, the others from the source. The matrix holds its values.
LinearWeight finished_weight(const Workbench& bench, const WorkFolder& work, std::size_t layer,
                             const gemma4::StageModule& module, std::int64_t in_features);
std::vector<float> finished_matrix(const Workbench& bench, const WorkFolder& work, std::size_t layer,
                                   const gemma4::StageModule& module, std::int64_t in_features);

}  // namespace facet::cli
