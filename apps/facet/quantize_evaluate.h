// How far a quantized model is from its source on token sequences, before anything is written.
#pragma once

#include "quantize_bench.h"

namespace facet::cli {

// Quantized matrix of a module as floats.
using MatrixOf =
    std::function<std::vector<float>(std::size_t layer, const gemma4::StageModule& module, std::int64_t in_features)>;

// Runs `sequences` (at least 2 ids each) through the quantized model and through the source, in float, and returns
// {"nll", "perplexity", "source_nll", "mean_kl", "top1_agreement", "predictions", "buckets"}. KL is from the source to
// the quantized model, in nats a prediction; buckets are by length of the sequence.
Json evaluate_quantized(const Workbench& bench, const Sequences& sequences, const LinearWeight& embedding,
                        const LinearWeight& head, const MatrixOf& matrix_of);

// Sequences of settings.evaluate. Error(usage) naming one that has fewer than 2 ids or does not fit the model.
Sequences read_evaluation(const QuantizeSettings& settings, const gemma4::ModelConfig& model);

}  // namespace facet::cli
