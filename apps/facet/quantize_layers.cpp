#include "quantize_layers.h"

#include <chrono>

#include "facet/base/log.h"
#include "quantize_head.h"
#include "quantize_weight.h"

namespace facet::cli {
namespace {

using gemma4::CalibrationForward;
using gemma4::LayerMatrices;
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
  LayerLoop(const Workbench& bench, const Sequences& samples, WorkFolder& work, QuantizeProgressLine& progress)
      : bench_(bench),
        samples_(samples),
        work_(work),
        progress_(progress),
        states_(bench.facts, bench.checkpoint, bench.backend(), bench.products(), samples) {
    if (bench.settings.gptq() && bench.settings.correction != 0)
      originals_.emplace(bench.facts, bench.checkpoint, bench.backend(), bench.products(), samples);
  }

  void run();

 private:
  void embed();
  void quantize_layer(std::size_t layer);
  void replay_layer(std::size_t layer);
  void quantize_stage(LayerStage stage);
  void quantize_head();
  // Rows of a sequence's inputs in one of the two models.
  using Fill =
      std::function<void(CalibrationForward& states, const LayerMatrices& matrices, std::size_t sequence, float* out)>;
  // What the inputs of `module`, and of all that read the same, are made into.
  std::unique_ptr<quantizer::Calibration> calibrate(const std::string& module, const QuantizationScheme& scheme,
                                                    std::int64_t width, const Fill& fill);
  void add_batch(std::size_t begin, std::size_t end, const std::string& module, const Fill& fill,
                 quantizer::Calibration& inputs);
  QuantizedMatrix quantize_module(const gemma4::StageModule& module, const std::string& source,
                                  quantizer::Calibration& inputs, Json& report);
  void advance(LayerStage stage);
  void for_sequences(std::size_t begin, std::size_t end, const std::function<void(std::size_t)>& body) const;
  std::size_t batch_end(std::size_t begin) const;

  const Workbench& bench_;
  const Sequences& samples_;
  WorkFolder& work_;
  QuantizeProgressLine& progress_;
  CalibrationForward states_;
  std::optional<CalibrationForward> originals_;  // the same tokens in the source model, for the correction
  LayerMatrices matrices_, original_matrices_;
  FinishedPart finished_;
  std::size_t layer_ = 0;
};

void LayerLoop::for_sequences(std::size_t begin, std::size_t end, const std::function<void(std::size_t)>& body) const {
  bench_.parallel()(static_cast<std::int64_t>(end - begin), [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) body(begin + static_cast<std::size_t>(i));
  });
}

std::size_t LayerLoop::batch_end(std::size_t begin) const {
  std::int64_t tokens = states_.tokens(begin);
  std::size_t end = begin + 1;
  while (end < states_.sequences() && tokens + states_.tokens(end) <= kBatchTokens) tokens += states_.tokens(end++);
  return end;
}

void LayerLoop::run() {
  embed();
  const std::size_t layers = bench_.facts.model.layers.size();
  const std::int64_t tokens = token_count(samples_);
  for (layer_ = 0; layer_ < layers; ++layer_) {
    states_.begin_layer(layer_);
    if (originals_) originals_->begin_layer(layer_);
    if (work_.has(layer_part(layer_))) {
      progress_.now(fmt::format("layer {} of {}: done before", layer_ + 1, layers));
      replay_layer(layer_);
      progress_.skip(layer_cost(bench_, layer_, tokens));
    } else {
      quantize_layer(layer_);
    }
    bench_.checkpoint.release_pages();
  }
  if (bench_.scheme(kHeadModule) != nullptr && !work_.has(kHeadPart)) quantize_head();
}

void LayerLoop::embed() {
  const LinearWeight source =
      bench_.original(bench_.embedding(), bench_.facts.model.vocabulary, bench_.facts.model.hidden);
  const LinearWeight table = quantize_table(bench_, &work_);
  for_sequences(0, states_.sequences(), [&](std::size_t i) {
    states_.embed(i, table.view());
    if (originals_) originals_->embed(i, source.view());
  });
}

void LayerLoop::quantize_layer(std::size_t layer) {
  const auto start = Clock::now();
  finished_ = {};
  finished_.report = {{"layer", layer}, {"modules", Json::array()}};
  for (const LayerStage stage : gemma4::kLayerStages) {
    quantize_stage(stage);
    progress_.add(stage_cost(stage_modules(bench_.facts, layer, stage), token_count(samples_)));
  }
  finished_.report["seconds"] = seconds_since(start);
  work_.save(layer_part(layer), finished_);
}

void LayerLoop::replay_layer(std::size_t layer) {
  for (const LayerStage stage : gemma4::kLayerStages) {
    const StageModules modules = stage_modules(bench_.facts, layer, stage);
    matrices_[stage].clear();
    original_matrices_[stage].clear();
    for (const gemma4::StageModule& module : modules.modules) {
      matrices_[stage].push_back(finished_matrix(bench_, work_, layer, module, modules.in_features));
      if (originals_)
        original_matrices_[stage].push_back(
            bench_.floats(bench_.original(module.name, module.out_features, modules.in_features)));
    }
    advance(stage);
  }
}

void LayerLoop::quantize_stage(LayerStage stage) {
  const StageModules modules = stage_modules(bench_.facts, layer_, stage);
  matrices_[stage].clear();
  original_matrices_[stage].clear();
  const QuantizationScheme* any = nullptr;
  for (const gemma4::StageModule& module : modules.modules) {
    if (bench_.scheme(module.name) != nullptr) any = bench_.scheme(module.name);
  }
  std::unique_ptr<quantizer::Calibration> inputs;
  if (any != nullptr) {
    const auto start = Clock::now();
    const std::string& first = modules.modules.front().name;
    progress_.now(fmt::format("layer {} of {}: inputs of {}", layer_ + 1, bench_.facts.model.layers.size(), first));
    inputs = calibrate(first, *any, modules.in_features,
                       [&](CalibrationForward& states, const LayerMatrices& matrices, std::size_t i, float* out) {
                         states.input(stage, i, matrices, out);
                       });
    finished_.report["inputs"].push_back({{"first_module", first},
                                          {"columns", modules.in_features},
                                          {"rows", inputs->facts().rows},
                                          {"seconds", seconds_since(start)}});
  }
  for (const gemma4::StageModule& module : modules.modules) {
    const LinearWeight weight = bench_.original(module.name, module.out_features, modules.in_features);
    if (originals_) original_matrices_[stage].push_back(bench_.floats(weight));
    const QuantizationScheme* scheme = bench_.scheme(module.name);
    if (scheme == nullptr) {
      matrices_[stage].push_back(bench_.floats(weight));
      continue;
    }
    progress_.now(fmt::format("layer {} of {}: {}", layer_ + 1, bench_.facts.model.layers.size(), module.name));
    Json report;
    QuantizedMatrix matrix = quantize_module(module, module.name, *inputs, report);
    finished_.report["modules"].push_back(report);
    matrices_[stage].push_back(
        bench_.floats(bench_.weight_of(matrix, *scheme, module.out_features, modules.in_features)));
    finished_.modules.emplace(module.name, std::move(matrix));
  }
  inputs.reset();
  advance(stage);
}

void LayerLoop::quantize_head() {
  const gemma4::ModelConfig& model = bench_.facts.model;
  progress_.now("output head");
  const auto inputs = calibrate(
      kHeadModule, *bench_.scheme(kHeadModule), model.hidden,
      [](CalibrationForward& states, const LayerMatrices&, std::size_t i, float* out) { states.head_input(i, out); });
  FinishedPart part;
  QuantizedMatrix matrix = quantize_module({kHeadModule, model.vocabulary}, bench_.head_source(), *inputs, part.report);
  part.modules.emplace(kHeadModule, std::move(matrix));
  work_.save(kHeadPart, part);
  progress_.add(head_cost(bench_, token_count(samples_)));
}

std::unique_ptr<quantizer::Calibration> LayerLoop::calibrate(const std::string& module,
                                                             const QuantizationScheme& scheme, std::int64_t width,
                                                             const Fill& fill) {
  auto inputs = bench_.engine().begin(width, gptq_options(bench_.settings, scheme), originals_.has_value());
  for (std::size_t begin = 0; begin < states_.sequences();) {
    const std::size_t end = batch_end(begin);
    add_batch(begin, end, module, fill, *inputs);
    begin = end;
  }
  inputs->factor();
  if (inputs->facts().failures > 0) {
    log(LogLevel::warn, "{}: the Hessian is not positive definite; damping raised {} times, to {:.3g}", module,
        inputs->facts().failures, inputs->facts().damping);
  }
  return inputs;
}

void LayerLoop::add_batch(std::size_t begin, std::size_t end, const std::string& module, const Fill& fill,
                          quantizer::Calibration& inputs) {
  std::vector<std::int64_t> offsets = {0};
  for (std::size_t i = begin; i < end; ++i) offsets.push_back(offsets.back() + states_.tokens(i));
  float* rows = inputs.rows(offsets.back());
  float* originals = originals_ ? inputs.originals(offsets.back()) : nullptr;
  for_sequences(begin, end, [&](std::size_t i) {
    const std::int64_t offset = offsets[i - begin] * inputs.columns();
    fill(states_, matrices_, i, rows + offset);
    if (originals_) fill(*originals_, original_matrices_, i, originals + offset);
  });
  try {
    inputs.add();
  } catch (const quantizer::InputError& error) {
    const auto after = std::upper_bound(offsets.begin(), offsets.end(), error.row());
    const auto place = static_cast<std::size_t>(after - offsets.begin()) - 1;
    throw_error(ErrorKind::run, "{}: input {} is NaN or infinite at token {} of sample {} ({} of {})", module,
                error.column(), error.row() - offsets[place], begin + place + 1, bench_.settings.calibration,
                samples_.size());
  }
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

void LayerLoop::advance(LayerStage stage) {
  for_sequences(0, states_.sequences(), [&](std::size_t i) {
    states_.advance(stage, i, matrices_);
    if (originals_) originals_->advance(stage, i, original_matrices_);
  });
}

}  // namespace

std::string layer_part(std::size_t layer) {
  return fmt::format("layer-{:05}", layer);
}

void quantize_layers(const Workbench& bench, const Sequences& samples, WorkFolder& work,
                     QuantizeProgressLine& progress) {
  LayerLoop(bench, samples, work, progress).run();
}

double total_cost(const Workbench& bench, std::int64_t tokens) {
  double cost = bench.scheme(kHeadModule) != nullptr ? head_cost(bench, tokens) : 0;
  for (std::size_t layer = 0; layer < bench.facts.model.layers.size(); ++layer)
    cost += layer_cost(bench, layer, tokens);
  return cost;
}

std::vector<float> finished_matrix(const Workbench& bench, const WorkFolder& work, std::size_t layer,
                                   const gemma4::StageModule& module, std::int64_t in_features) {
  const QuantizationScheme* scheme = bench.scheme(module.name);
  if (scheme == nullptr) return bench.floats(bench.original(module.name, module.out_features, in_features));
  return bench.floats(
      bench.weight_of(work.load(layer_part(layer), module.name), *scheme, module.out_features, in_features));
}

}  // namespace facet::cli
