#include "quantize_memory.h"

namespace facet::cli {
QuantizeMemory plan_memory(const Workbench& bench, const CalibrationWalk& walk) {
  const gemma4::ModelConfig& model = bench.facts.model;
  const LayerWidths widest = layer_widths(bench);
  const bool corrected = has_correction(bench.settings);
  QuantizeMemory memory;
  memory.activations = walk.state_bytes();
  memory.batch = walk.batch_bytes(widest.input);
  memory.device = walk.device_bytes(widest.input);
  if (memory.device == 0) {
    memory.hessian =
        quantizer::Hessian::bytes(widest.input, corrected) + quantizer::GptqInput::bytes(widest.input, corrected);
  }
  memory.matrices = walk.matrix_bytes(widest.weights);
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
