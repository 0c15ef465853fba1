// What a calibrated quantization will hold at its peak, known before it starts.
#pragma once

#include "quantize_walk.h"

namespace facet::cli {

struct QuantizeMemory {
  std::uint64_t activations = 0;  // hidden states and attention outputs of all samples
  std::uint64_t batch = 0;        // inputs of one stage, some thousand rows, and what computing them takes
  std::uint64_t hessian = 0;      // of the widest input, and its factor
  std::uint64_t matrices = 0;     // one layer as floats, and its codes
  std::uint64_t head = 0;         // a quantized embedding or output head
  std::uint64_t device = 0;       // of a GPU's own memory; not in the total
  std::uint64_t total() const { return activations + batch + hessian + matrices + head; }
};

QuantizeMemory plan_memory(const Workbench& bench, const CalibrationWalk& walk);
Json memory_json(const QuantizeMemory& memory);

}  // namespace facet::cli
