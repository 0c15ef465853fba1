#include "quantize_walk.h"

#include "facet/base/log.h"
#include "facet/base/text.h"

namespace facet::cli {
namespace {

using gemma4::CalibrationForward;
using gemma4::LayerMatrices;
using gemma4::LayerStage;

class HostWalk final : public CalibrationWalk {
 public:
  HostWalk(const Workbench& bench, const Sequences& samples)
      : bench_(bench),
        samples_(samples),
        states_(bench.facts, bench.checkpoint, bench.backend(), bench.products(), samples) {
    if (has_correction(bench.settings))
      originals_.emplace(bench.facts, bench.checkpoint, bench.backend(), bench.products(), samples);
  }

  std::string device() const override { return "cpu"; }
  std::uint64_t state_bytes() const override {
    return models() * CalibrationForward::state_bytes(bench_.facts, token_count(samples_));
  }
  std::uint64_t batch_bytes(std::int64_t widest) const override {
    // A correction also holds the difference of the two streams.
    const std::uint64_t rows = static_cast<std::uint64_t>(widest_batch() * widest) * sizeof(float);
    return (originals_ ? 3 : 1) * rows +
           static_cast<std::uint64_t>(bench_.workers()) * CalibrationForward::scratch_bytes(bench_.facts, longest());
  }
  // Codes take half a byte and a scale per group; a byte covers both and their copies while a matrix is stored.
  std::uint64_t matrix_bytes(std::int64_t weights) const override {
    return (models() * sizeof(float) + 1) * static_cast<std::uint64_t>(weights);
  }
  std::uint64_t device_bytes(std::int64_t widest) const override {
    return bench_.engine().device_bytes(widest, widest_batch(), originals_.has_value(),
                                        quantizer::Engine::RowsFrom::host);
  }

  void embed(const LinearWeight& table, const LinearWeight& source) override {
    for_sequences(0, states_.sequences(), [&](std::size_t i) {
      states_.embed(i, table.view());
      if (originals_) originals_->embed(i, source.view());
    });
  }
  void begin_layer(std::size_t layer) override {
    matrices_ = {};
    original_matrices_ = {};
    states_.begin_layer(layer);
    if (originals_) originals_->begin_layer(layer);
  }
  void add_inputs(std::optional<LayerStage> stage, const std::string& module, quantizer::Calibration& inputs) override {
    for (std::size_t begin = 0; begin < states_.sequences();) {
      const std::size_t end = batch_end(begin);
      add_batch(begin, end, stage, module, inputs);
      begin = end;
    }
  }
  void advance(LayerStage stage, std::span<const LinearWeight> weights,
               std::span<const LinearWeight> originals) override {
    for (const LinearWeight& weight : weights) matrices_[stage].push_back(bench_.floats(weight));
    if (originals_) {
      for (const LinearWeight& weight : originals) original_matrices_[stage].push_back(bench_.floats(weight));
    }
    for_sequences(0, states_.sequences(), [&](std::size_t i) {
      states_.advance(stage, i, matrices_);
      if (originals_) originals_->advance(stage, i, original_matrices_);
    });
  }

 private:
  std::uint64_t models() const { return originals_ ? 2 : 1; }
  std::int64_t longest() const {
    std::int64_t longest = 0;
    for (const auto& sample : samples_) longest = std::max(longest, static_cast<std::int64_t>(sample.size()));
    return longest;
  }
  std::int64_t widest_batch() const { return std::min(token_count(samples_), std::max(kBatchTokens, longest())); }
  void for_sequences(std::size_t begin, std::size_t end, const std::function<void(std::size_t)>& body) const {
    bench_.parallel()(static_cast<std::int64_t>(end - begin), [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i) body(begin + static_cast<std::size_t>(i));
    });
  }
  std::size_t batch_end(std::size_t begin) const {
    std::int64_t tokens = states_.tokens(begin);
    std::size_t end = begin + 1;
    while (end < states_.sequences() && tokens + states_.tokens(end) <= kBatchTokens) tokens += states_.tokens(end++);
    return end;
  }
  static void fill(const CalibrationForward& states, std::optional<LayerStage> stage, std::size_t sequence,
                   const LayerMatrices& matrices, float* out) {
    if (stage) {
      states.input(*stage, sequence, matrices, out);
    } else {
      states.head_input(sequence, out);
    }
  }
  void add_batch(std::size_t begin, std::size_t end, std::optional<LayerStage> stage, const std::string& module,
                 quantizer::Calibration& inputs) {
    std::vector<std::int64_t> offsets = {0};
    for (std::size_t i = begin; i < end; ++i) offsets.push_back(offsets.back() + states_.tokens(i));
    float* rows = inputs.rows(offsets.back());
    float* originals = originals_ ? inputs.originals(offsets.back()) : nullptr;
    for_sequences(begin, end, [&](std::size_t i) {
      const std::int64_t offset = offsets[i - begin] * inputs.columns();
      fill(states_, stage, i, matrices_, rows + offset);
      if (originals_) fill(*originals_, stage, i, original_matrices_, originals + offset);
    });
    try {
      inputs.add();
    } catch (const quantizer::InputError& error) {
      const auto after = std::upper_bound(offsets.begin(), offsets.end(), error.row());
      const auto place = static_cast<std::size_t>(after - offsets.begin()) - 1;
      refuse_input(bench_, samples_, module, error, begin + place, error.row() - offsets[place]);
    }
  }

  const Workbench& bench_;
  const Sequences& samples_;
  CalibrationForward states_;
  std::optional<CalibrationForward> originals_;  // the same tokens in the source model
  LayerMatrices matrices_, original_matrices_;
};

}  // namespace

bool has_correction(const QuantizeSettings& settings) {
  return settings.gptq() && settings.correction != 0;
}

LayerWidths layer_widths(const Workbench& bench) {
  LayerWidths widest;
  for (std::size_t layer = 0; layer < bench.facts.model.layers.size(); ++layer) {
    std::int64_t weights = 0;
    for (const LayerStage stage : gemma4::kLayerStages) {
      const gemma4::StageModules modules = stage_modules(bench.facts, layer, stage);
      widest.input = std::max(widest.input, modules.in_features);
      for (const gemma4::StageModule& module : modules.modules) weights += module.out_features * modules.in_features;
    }
    widest.weights = std::max(widest.weights, weights);
  }
  return widest;
}

void refuse_input(const Workbench& bench, const Sequences& samples, const std::string& module,
                  const quantizer::InputError& error, std::size_t sample, std::int64_t token) {
  throw_error(ErrorKind::run, "{}: input {} is NaN or infinite at token {} of sample {} ({} of {})", module,
              error.column(), token, sample + 1, bench.settings.calibration, samples.size());
}

std::unique_ptr<CalibrationWalk> make_walk(const Workbench& bench, const Sequences& samples) {
  const std::uint64_t free = bench.engine().free_bytes();
  if (free == 0) return std::make_unique<HostWalk>(bench, samples);
  std::string reason;
  try {
    auto walk = make_device_walk(bench, samples);
    const std::uint64_t needed = walk->device_bytes(layer_widths(bench).input);
    if (needed <= free) return walk;
    reason = fmt::format("it needs {} of the GPU's memory and {} are free; fewer or shorter samples need less",
                         format_bytes(needed), format_bytes(free));
  } catch (const Error& error) {
    // Samples that the model cannot take are refused on either.
    if (error.kind() == ErrorKind::usage) throw;
    reason = error.what();
  }
  if (bench.settings.device == "cuda") {
    throw_error(ErrorKind::run,
                "--device cuda: the calibration samples cannot run on the GPU: {}; with --device auto "
                "they run on the CPU, which is far slower",
                reason);
  }
  log(LogLevel::warn, "calibration samples run on the CPU, which is far slower: {}", reason);
  return std::make_unique<HostWalk>(bench, samples);
}

}  // namespace facet::cli
