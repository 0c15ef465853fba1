#include "quantize_memory.h"

#include "quantize_layers.h"

namespace facet::cli {
namespace {

struct Widths {
  std::int64_t input = 0;    // widest input of a stage
  std::int64_t weights = 0;  // of one layer
};

Widths widths(const Workbench& bench) {
  Widths widest;
  for (std::size_t layer = 0; layer < bench.facts.model.layers.size(); ++layer) {
    std::int64_t weights = 0;
    for (const gemma4::LayerStage stage : gemma4::kLayerStages) {
      const gemma4::StageModules modules = stage_modules(bench.facts, layer, stage);
      widest.input = std::max(widest.input, modules.in_features);
      for (const gemma4::StageModule& module : modules.modules) weights += module.out_features * modules.in_features;
    }
    widest.weights = std::max(widest.weights, weights);
  }
  return widest;
}

}  // namespace

QuantizeMemory plan_memory(const Workbench& bench, const Sequences& samples) {
  const gemma4::ModelConfig& model = bench.facts.model;
  const Widths widest = widths(bench);
  const bool corrected = bench.settings.gptq() && bench.settings.correction != 0;
  const std::uint64_t streams = corrected ? 2 : 1;
  std::int64_t longest = 0;
  for (const auto& sample : samples) longest = std::max(longest, static_cast<std::int64_t>(sample.size()));
  const std::int64_t batch = std::min(token_count(samples), std::max(kBatchTokens, longest));
  const auto floats = [](std::int64_t rows, std::int64_t columns) {
    return static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(columns) * sizeof(float);
  };
  QuantizeMemory memory;
  memory.activations = streams * gemma4::CalibrationForward::state_bytes(bench.facts, token_count(samples));
  // A correction also holds the difference of the two streams.
  memory.batch =
      (corrected ? 3 : 1) * floats(batch, widest.input) +
      static_cast<std::uint64_t>(bench.workers()) * gemma4::CalibrationForward::scratch_bytes(bench.facts, longest);
  memory.device = bench.engine().device_bytes(widest.input, batch, corrected);
  if (memory.device == 0) {
    memory.hessian =
        quantizer::Hessian::bytes(widest.input, corrected) + quantizer::GptqInput::bytes(widest.input, corrected);
  }
  // Codes take half a byte and a scale per group; a byte covers both and their copies while a matrix is stored.
  memory.matrices = streams * floats(1, widest.weights) + static_cast<std::uint64_t>(widest.weights);
  // Codes and their copy while they are stored: a byte each for int8, half a byte and scales for int4.
  if (bench.scheme(bench.embedding()) != nullptr || bench.scheme(kHeadModule) != nullptr)
    memory.head = 2 * static_cast<std::uint64_t>(model.vocabulary) * static_cast<std::uint64_t>(model.hidden);
  return memory;
}

Json memory_json(const QuantizeMemory& memory) {
  return {{"activations", memory.activations},
          {"batch", memory.batch},
          {"hessian", memory.hessian},
          {"matrices", memory.matrices},
          {"head", memory.head},
          {"total", memory.total()},
          {"device", memory.device}};
}

}  // namespace facet::cli
