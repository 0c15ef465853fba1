// The calibration samples on their way through the model: on this processor in float, or on a GPU in bf16.
#pragma once

#include <optional>
#include <span>

#include "quantize_bench.h"

namespace facet::cli {

// Rows whose inputs are in memory at once. Sums are in float over this many, in double beyond.
inline constexpr std::int64_t kBatchTokens = 8192;

// Hidden states of all samples in the quantized model and, for a correction, in the source model. For every layer:
// begin_layer(), then for each stage add_inputs() if it is wanted, and advance().
class CalibrationWalk {
 public:
  virtual ~CalibrationWalk() = default;
  // "cpu" or "cuda".
  virtual std::string device() const = 0;
  // Host memory of all samples, of one batch of inputs of `widest` columns, and of the matrices of a layer that has
  // `weights` weights; and device memory, with what the engine takes beside it.
  virtual std::uint64_t state_bytes() const = 0;
  virtual std::uint64_t batch_bytes(std::int64_t widest) const = 0;
  virtual std::uint64_t matrix_bytes(std::int64_t weights) const = 0;
  virtual std::uint64_t device_bytes(std::int64_t widest) const = 0;

  virtual void embed(const LinearWeight& table, const LinearWeight& source) = 0;
  virtual void begin_layer(std::size_t layer) = 0;
  // Adds what the stage's modules read, or the output head where there is no stage, in both models. Throws Error(run)
  // naming sample, token and `module` for a value that is NaN or infinite.
  virtual void add_inputs(std::optional<gemma4::LayerStage> stage, const std::string& module,
                          quantizer::Calibration& inputs) = 0;
  // Runs the stage's modules as they are now; the source model's too.
  virtual void advance(gemma4::LayerStage stage, std::span<const LinearWeight> weights,
                       std::span<const LinearWeight> originals) = 0;
};

// Everything must outlive the walk. On the GPU where the engine is and the samples' states fit beside its work; the log
// says what was taken and why.
std::unique_ptr<CalibrationWalk> make_walk(const Workbench& bench, const Sequences& samples);

// The GPU's walk; throws Error with the reason where there is none.
std::unique_ptr<CalibrationWalk> make_device_walk(const Workbench& bench, const Sequences& samples);

// The source model runs beside the quantized one.
bool has_correction(const QuantizeSettings& settings);
// Widest input of a stage, and weights of the largest layer.
struct LayerWidths {
  std::int64_t input = 0, weights = 0;
};
LayerWidths layer_widths(const Workbench& bench);
// Sample number `sample`, counted from 0, and token of a value that the engine refused.
[[noreturn]] void refuse_input(const Workbench& bench, const Sequences& samples, const std::string& module,
                               const quantizer::InputError& error, std::size_t sample, std::int64_t token);

}  // namespace facet::cli
