#include "quantize_layers.h"

#include <chrono>

#include "facet/base/log.h"
#include "quantize_head.h"
#include "quantize_weight.h"

namespace facet::cli {
namespace {

using gemma4::LayerStage;
using gemma4::StageModules;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double stage_cost(const StageModules& stage, std::int64_t tokens) {
  const auto in = static_cast<double>(stage.in_features);
  double cost = static_cast<double>(tokens) * in * in;
  for (const gemma4::StageModule& module : stage.modules)
    cost += 2 * in * static_cast<double>(module.out_features) * (static_cast<double>(tokens) + 2 * in);
  return cost;
}

double layer_cost(const Workbench& bench, std::size_t layer, std::int64_t tokens) {
  double cost = 0;
  for (const LayerStage stage : gemma4::kLayerStages)
    cost += stage_cost(stage_modules(bench.facts, layer, stage), tokens);
  return cost;
}

double head_cost(const Workbench& bench, std::int64_t tokens) {
  return stage_cost({{{kHeadModule, bench.facts.model.vocabulary}}, bench.facts.model.hidden}, tokens);
}

class LayerLoop {
 public:
  LayerLoop(const Workbench& bench, const Sequences& samples, CalibrationWalk& walk, WorkFolder& work,
            QuantizeProgressLine& progress)
      : bench_(bench),
        tokens_(token_count(samples)),
        corrected_(has_correction(bench.settings)),
        walk_(walk),
        work_(work),
        progress_(progress) {}

  void run();

 private:
  // A stage's modules as the quantized model has them, and as the source does.
  struct Weights {
    std::vector<LinearWeight> now, originals;
  };

  void quantize_layer();
  void replay_layer();
  void quantize_stage(LayerStage stage);
  void quantize_head();
  // What the inputs of `module`, and of all that read the same, are made into.
  std::unique_ptr<quantizer::Calibration> calibrate(std::optional<LayerStage> stage, const std::string& module,
                                                    const QuantizationScheme& scheme, std::int64_t width);
  QuantizedMatrix quantize_module(const gemma4::StageModule& module, const std::string& source,
                                  quantizer::Calibration& inputs, Json& report);
  void advance(LayerStage stage, const Weights& weights);

  const Workbench& bench_;
  const std::int64_t tokens_;
  const bool corrected_;
  CalibrationWalk& walk_;
  WorkFolder& work_;
  QuantizeProgressLine& progress_;
  FinishedPart finished_;
  double forward_seconds_ = 0;  // of the layer
  std::size_t layer_ = 0;
};

void LayerLoop::run() {
  const gemma4::ModelConfig& model = bench_.facts.model;
  walk_.embed(quantize_table(bench_, &work_), bench_.original(bench_.embedding(), model.vocabulary, model.hidden));
  const std::size_t layers = model.layers.size();
  for (layer_ = 0; layer_ < layers; ++layer_) {
    walk_.begin_layer(layer_);
    if (work_.has(layer_part(layer_))) {
      progress_.now(fmt::format("layer {} of {}", layer_ + 1, layers), "taking over the finished");
      replay_layer();
      progress_.skip(layer_cost(bench_, layer_, tokens_));
    } else {
      quantize_layer();
    }
    bench_.checkpoint.release_pages();
  }
  if (bench_.scheme(kHeadModule) != nullptr && !work_.has(kHeadPart)) quantize_head();
}

void LayerLoop::quantize_layer() {
  const auto start = Clock::now();
  finished_ = {};
  finished_.report = {{"layer", layer_}, {"modules", Json::array()}};
  forward_seconds_ = 0;
  for (const LayerStage stage : gemma4::kLayerStages) {
    quantize_stage(stage);
    progress_.add(stage_cost(stage_modules(bench_.facts, layer_, stage), tokens_));
  }
  finished_.report["forward_seconds"] = forward_seconds_;
  finished_.report["seconds"] = seconds_since(start);
  work_.save(layer_part(layer_), finished_);
}

void LayerLoop::replay_layer() {
  for (const LayerStage stage : gemma4::kLayerStages) {
    const StageModules modules = stage_modules(bench_.facts, layer_, stage);
    Weights weights;
    for (const gemma4::StageModule& module : modules.modules) {
      weights.now.push_back(finished_weight(bench_, work_, layer_, module, modules.in_features));
      if (corrected_)
        weights.originals.push_back(bench_.original(module.name, module.out_features, modules.in_features));
    }
    advance(stage, weights);
  }
}

void LayerLoop::quantize_stage(LayerStage stage) {
  const StageModules modules = stage_modules(bench_.facts, layer_, stage);
  const QuantizationScheme* any = nullptr;
  for (const gemma4::StageModule& module : modules.modules) {
    if (bench_.scheme(module.name) != nullptr) any = bench_.scheme(module.name);
  }
  std::unique_ptr<quantizer::Calibration> inputs;
  if (any != nullptr) {
    const auto start = Clock::now();
    const std::string& first = modules.modules.front().name;
    progress_.now(fmt::format("layer {} of {}: inputs of {}", layer_ + 1, bench_.facts.model.layers.size(), first));
    inputs = calibrate(stage, first, *any, modules.in_features);
    finished_.report["inputs"].push_back({{"first_module", first},
                                          {"columns", modules.in_features},
                                          {"rows", inputs->facts().rows},
                                          {"seconds", seconds_since(start)}});
  }
  Weights weights;
  for (const gemma4::StageModule& module : modules.modules) {
    const LinearWeight weight = bench_.original(module.name, module.out_features, modules.in_features);
    if (corrected_) weights.originals.push_back(weight);
    const QuantizationScheme* scheme = bench_.scheme(module.name);
    if (scheme == nullptr) {
      weights.now.push_back(weight);
      continue;
    }
    progress_.now(fmt::format("layer {} of {}: {}", layer_ + 1, bench_.facts.model.layers.size(), module.name));
    Json report;
    QuantizedMatrix matrix = quantize_module(module, module.name, *inputs, report);
    finished_.report["modules"].push_back(report);
    weights.now.push_back(bench_.weight_of(matrix, *scheme, module.out_features, modules.in_features));
    finished_.modules.emplace(module.name, std::move(matrix));
  }
  inputs.reset();
  advance(stage, weights);
}

void LayerLoop::quantize_head() {
  const gemma4::ModelConfig& model = bench_.facts.model;
  progress_.now("output head");
  const auto inputs = calibrate({}, kHeadModule, *bench_.scheme(kHeadModule), model.hidden);
  FinishedPart part;
  QuantizedMatrix matrix = quantize_module({kHeadModule, model.vocabulary}, bench_.head_source(), *inputs, part.report);
  part.modules.emplace(kHeadModule, std::move(matrix));
  work_.save(kHeadPart, part);
  progress_.add(head_cost(bench_, tokens_));
}

std::unique_ptr<quantizer::Calibration> LayerLoop::calibrate(std::optional<LayerStage> stage, const std::string& module,
                                                             const QuantizationScheme& scheme, std::int64_t width) {
  auto inputs = bench_.engine().begin(width, gptq_options(bench_.settings, scheme), corrected_);
  walk_.add_inputs(stage, module, *inputs);
  inputs->factor();
  if (inputs->facts().failures > 0) {
    log(LogLevel::warn, "{}: the Hessian is not positive definite; damping raised {} times, to {:.3g}", module,
        inputs->facts().failures, inputs->facts().damping);
  }
  return inputs;
}

QuantizedMatrix LayerLoop::quantize_module(const gemma4::StageModule& module, const std::string& source,
                                           quantizer::Calibration& inputs, Json& report) {
  const auto start = Clock::now();
  std::vector<float> storage;
  const DenseMatrix dense =
      dense_matrix(bench_.checkpoint.require(source + ".weight", {module.out_features, inputs.columns()},
                                             {TensorType::bf16, TensorType::f32}),
                   storage);
  const QuantizationScheme& scheme = *bench_.scheme(module.name);
  quantizer::GptqResult result;
  try {
    result = inputs.quantize(quantizer_matrix(dense), gptq_options(bench_.settings, scheme));
  } catch (const quantizer::QuantizeError& error) {
    throw_error(ErrorKind::checkpoint, "{}", error.what());
  } catch (const quantizer::EngineError& error) {
    throw_error(ErrorKind::run, "{}: {}", module.name, error.what());
  }
  const quantizer::Calibration::Facts facts = inputs.facts();
  report = {{"name", module.name},
            {"method", bench_.settings.method},
            {"scheme", to_string(scheme)},
            {"error", result.error},
            {"relative_error", result.output > 0 ? result.error / result.output : 0.0},
            {"nearest_relative_error", result.output > 0 ? result.nearest_error / result.output : 0.0},
            {"predicted_loss", result.predicted_loss},
            {"rows_kept_nearest", result.kept_rows},
            {"dead_columns", facts.dead_columns},
            {"damping", facts.damping},
            {"cholesky_failures", facts.failures},
            {"seconds", seconds_since(start)}};
  return {std::move(result.quantized.words), std::move(result.quantized.scales), std::move(result.quantized.zeros)};
}

void LayerLoop::advance(LayerStage stage, const Weights& weights) {
  const auto start = Clock::now();
  walk_.advance(stage, weights.now, weights.originals);
  forward_seconds_ += seconds_since(start);
}

}  // namespace

std::string layer_part(std::size_t layer) {
  return fmt::format("layer-{:05}", layer);
}

void quantize_layers(const Workbench& bench, const Sequences& samples, CalibrationWalk& walk, WorkFolder& work,
                     QuantizeProgressLine& progress) {
  LayerLoop(bench, samples, walk, work, progress).run();
}

double total_cost(const Workbench& bench, std::int64_t tokens) {
  double cost = bench.scheme(kHeadModule) != nullptr ? head_cost(bench, tokens) : 0;
  for (std::size_t layer = 0; layer < bench.facts.model.layers.size(); ++layer)
    cost += layer_cost(bench, layer, tokens);
  return cost;
}

LinearWeight finished_weight(const Workbench& bench, const WorkFolder& work, std::size_t layer,
                             const gemma4::StageModule& module, std::int64_t in_features) {
  const QuantizationScheme* scheme = bench.scheme(module.name);
  if (scheme == nullptr) return bench.original(module.name, module.out_features, in_features);
  return bench.weight_of(work.load(layer_part(layer), module.name), *scheme, module.out_features, in_features);
}

std::vector<float> finished_matrix(const Workbench& bench, const WorkFolder& work, std::size_t layer,
                                   const gemma4::StageModule& module, std::int64_t in_features) {
  return bench.floats(finished_weight(bench, work, layer, module, in_features));
}

}  // namespace facet::cli
