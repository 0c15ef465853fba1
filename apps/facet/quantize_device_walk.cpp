#include "facet/backend/cuda_backend.h"
#include "facet/base/log.h"
#include "gemma4/device_calibration.h"
#include "quantize_walk.h"

namespace facet::cli {
namespace {

using gemma4::CalibrationBatch;
using gemma4::DeviceCalibration;
using gemma4::LayerStage;

// What CUDA takes of the host's memory, pinned copies, and one step of packing: an H200 with CUDA 13 took 0.43 GiB.
constexpr std::uint64_t kHostBytes = std::uint64_t{512} << 20;

LinearFormat format_of(const QuantizationScheme* scheme, std::int64_t in_features) {
  if (scheme == nullptr) return {};
  return {scheme->bits == 4 ? abi::WeightFormat::int4 : abi::WeightFormat::int8,
          scheme->group_size < 0 ? in_features : scheme->group_size, scheme->symmetric};
}

class DeviceWalk final : public CalibrationWalk {
 public:
  DeviceWalk(const Workbench& bench, const Sequences& samples)
      : bench_(bench),
        samples_(samples),
        backend_(make_cuda_backend()),
        registry_(bench.services().table(), {}),
        states_(bench.facts, bench.checkpoint, *backend_, registry_, samples, kBatchTokens, formats(bench)) {}

  std::string device() const override { return "cuda"; }
  std::uint64_t state_bytes() const override { return 0; }
  std::uint64_t batch_bytes(std::int64_t /*widest*/) const override { return kHostBytes; }
  // Codes and their copies; the source's values stay in the mapped checkpoint.
  std::uint64_t matrix_bytes(std::int64_t weights) const override { return static_cast<std::uint64_t>(weights); }
  std::uint64_t device_bytes(std::int64_t widest) const override {
    const gemma4::ModelConfig& model = bench_.facts.model;
    const std::uint64_t table =
        states_.table_bytes(bench_.original(bench_.embedding(), model.vocabulary, model.hidden).view());
    const std::uint64_t work =
        bench_.engine().device_bytes(widest, states_.widest_batch(), corrected(), quantizer::Engine::RowsFrom::device);
    // Memory that the engine has had stays with it while a stage's weights are on the device.
    return states_.state_bytes() + std::max(table, work + states_.weight_bytes());
  }

  void embed(const LinearWeight& table, const LinearWeight& source) override {
    const abi::WeightView tables[] = {table.view(), source.view()};
    states_.embed({tables, models()});
  }
  void begin_layer(std::size_t layer) override { states_.begin_layer(layer); }
  void add_inputs(std::optional<LayerStage> stage, const std::string& module, quantizer::Calibration& inputs) override {
    const auto input = [&](std::size_t model, std::size_t batch) {
      return stage ? states_.input(model, *stage, batch) : states_.head_input(model, batch);
    };
    for (std::size_t batch = 0; batch < states_.batches().size(); ++batch) {
      quantizer::DeviceRows rows;
      rows.rows = input(0, batch);
      if (corrected()) rows.originals = input(1, batch);
      rows.count = states_.batches()[batch].tokens();
      rows.stream = backend_->stream().handle;
      try {
        inputs.add(rows);
      } catch (const quantizer::InputError& error) {
        const CalibrationBatch& of = states_.batches()[batch];
        const auto row = static_cast<std::size_t>(error.row());
        refuse_input(bench_, samples_, module, error, of.first + static_cast<std::size_t>(of.sequence[row]),
                     of.positions[row]);
      }
    }
  }
  void advance(LayerStage stage, std::span<const LinearWeight> weights,
               std::span<const LinearWeight> originals) override {
    states_.advance(0, stage, weights);
    if (corrected()) states_.advance(1, stage, originals);
  }

 private:
  bool corrected() const { return has_correction(bench_.settings); }
  std::size_t models() const { return corrected() ? 2 : 1; }
  static std::vector<DeviceCalibration::FormatOf> formats(const Workbench& bench) {
    std::vector<DeviceCalibration::FormatOf> made = {
        [&bench](const std::string& module, std::int64_t in) { return format_of(bench.scheme(module), in); }};
    if (has_correction(bench.settings)) made.push_back([](const std::string&, std::int64_t) { return LinearFormat(); });
    return made;
  }

  const Workbench& bench_;
  const Sequences& samples_;
  std::unique_ptr<Backend> backend_;
  PluginRegistry registry_;
  DeviceCalibration states_;
};

}  // namespace

std::unique_ptr<CalibrationWalk> make_device_walk(const Workbench& bench, const Sequences& samples) {
  return std::make_unique<DeviceWalk>(bench, samples);
}

}  // namespace facet::cli
