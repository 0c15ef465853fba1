#include "quantize_layers.h"

#include <chrono>

#include "facet/base/log.h"
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

class LayerLoop {
 public:
  LayerLoop(const Workbench& bench, const Sequences& samples, WorkFolder& work, QuantizeProgressLine& progress)
      : bench_(bench),
        samples_(samples),
        work_(work),
        progress_(progress),
        options_(gptq_options(bench.settings)),
        states_(bench.facts, bench.checkpoint, bench.backend(), bench.products(), samples) {
    if (options_.correction != 0)
      originals_.emplace(bench.facts, bench.checkpoint, bench.backend(), bench.products(), samples);
  }

  void run();

 private:
  void embed();
  void quantize_layer(std::size_t layer);
  void replay_layer(std::size_t layer);
  void quantize_stage(LayerStage stage);
  void collect(LayerStage stage, const StageModules& modules, quantizer::Hessian& hessian);
  std::vector<float> quantize_module(const gemma4::StageModule& module, const quantizer::Hessian& hessian,
                                     const quantizer::GptqInput& input);
  void advance(LayerStage stage);
  void for_sequences(std::size_t begin, std::size_t end, const std::function<void(std::size_t)>& body) const;
  std::size_t batch_end(std::size_t begin) const;

  const Workbench& bench_;
  const Sequences& samples_;
  WorkFolder& work_;
  QuantizeProgressLine& progress_;
  const quantizer::GptqOptions options_;
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
}

void LayerLoop::embed() {
  const LinearWeight source =
      bench_.original(bench_.embedding(), bench_.facts.model.vocabulary, bench_.facts.model.hidden);
  const LinearWeight table = quantize_head(bench_, &work_);
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
  bool any = false;
  for (const gemma4::StageModule& module : modules.modules) any = any || bench_.scheme(module.name) != nullptr;
  std::optional<quantizer::Hessian> hessian;
  std::optional<quantizer::GptqInput> input;
  if (any) {
    const auto start = Clock::now();
    progress_.now(fmt::format("layer {} of {}: inputs of {}", layer_ + 1, bench_.facts.model.layers.size(),
                              modules.modules.front().name));
    hessian.emplace(modules.in_features, originals_.has_value());
    collect(stage, modules, *hessian);
    input.emplace(*hessian, options_, bench_.blas(), bench_.parallel());
    if (input->failures() > 0) {
      log(LogLevel::warn, "{}: the Hessian is not positive definite; damping raised {} times, to {:.3g}",
          modules.modules.front().name, input->failures(), input->damping());
    }
    finished_.report["inputs"].push_back({{"first_module", modules.modules.front().name},
                                          {"columns", modules.in_features},
                                          {"rows", hessian->rows()},
                                          {"seconds", seconds_since(start)}});
  }
  for (const gemma4::StageModule& module : modules.modules) {
    const LinearWeight weight = bench_.original(module.name, module.out_features, modules.in_features);
    if (originals_) original_matrices_[stage].push_back(bench_.floats(weight));
    matrices_[stage].push_back(bench_.scheme(module.name) == nullptr ? bench_.floats(weight)
                                                                     : quantize_module(module, *hessian, *input));
  }
  advance(stage);
}

void LayerLoop::collect(LayerStage stage, const StageModules& modules, quantizer::Hessian& hessian) {
  const std::int64_t width = modules.in_features;
  std::vector<float> rows, originals;
  for (std::size_t begin = 0; begin < states_.sequences();) {
    const std::size_t end = batch_end(begin);
    std::vector<std::int64_t> offsets = {0};
    for (std::size_t i = begin; i < end; ++i) offsets.push_back(offsets.back() + states_.tokens(i));
    rows.resize(static_cast<std::size_t>(offsets.back() * width));
    if (originals_) originals.resize(rows.size());
    for_sequences(begin, end, [&](std::size_t i) {
      const std::int64_t offset = offsets[i - begin] * width;
      states_.input(stage, i, matrices_, rows.data() + offset);
      if (originals_) originals_->input(stage, i, original_matrices_, originals.data() + offset);
    });
    try {
      hessian.add(rows.data(), offsets.back(), bench_.blas(), bench_.parallel(), originals.data());
    } catch (const quantizer::InputError& error) {
      const auto after = std::upper_bound(offsets.begin(), offsets.end(), error.row());
      const auto place = static_cast<std::size_t>(after - offsets.begin()) - 1;
      throw_error(ErrorKind::run, "{}: input {} is NaN or infinite at token {} of sample {} ({} of {})",
                  modules.modules.front().name, error.column(), error.row() - offsets[place], begin + place + 1,
                  bench_.settings.calibration, samples_.size());
    }
    begin = end;
  }
}

std::vector<float> LayerLoop::quantize_module(const gemma4::StageModule& module, const quantizer::Hessian& hessian,
                                              const quantizer::GptqInput& input) {
  const auto start = Clock::now();
  progress_.now(fmt::format("layer {} of {}: {}", layer_ + 1, bench_.facts.model.layers.size(), module.name));
  std::vector<float> storage;
  const DenseMatrix dense =
      dense_matrix(bench_.checkpoint.require(module.name + ".weight", {module.out_features, hessian.columns()},
                                             {TensorType::bf16, TensorType::f32}),
                   storage);
  quantizer::GptqResult result;
  try {
    result = quantizer::quantize_gptq(quantizer_matrix(dense), input, options_, bench_.blas(), bench_.parallel());
  } catch (const quantizer::QuantizeError& error) {
    throw_error(ErrorKind::checkpoint, "{}", error.what());
  }
  const QuantizationScheme& scheme = *bench_.scheme(module.name);
  QuantizedMatrix matrix{std::move(result.quantized.words), std::move(result.quantized.scales),
                         std::move(result.quantized.zeros)};
  finished_.report["modules"].push_back(
      {{"name", module.name},
       {"method", bench_.settings.method},
       {"scheme", to_string(scheme)},
       {"error", result.error},
       {"relative_error", result.output > 0 ? result.error / result.output : 0.0},
       {"nearest_relative_error", result.output > 0 ? result.nearest_error / result.output : 0.0},
       {"predicted_loss", result.predicted_loss},
       {"rows_kept_nearest", result.kept_rows},
       {"dead_columns", input.dead_columns()},
       {"damping", input.damping()},
       {"cholesky_failures", input.failures()},
       {"seconds", seconds_since(start)}});
  std::vector<float> values = bench_.floats(bench_.weight_of(matrix, scheme, module.out_features, hessian.columns()));
  finished_.modules.emplace(module.name, std::move(matrix));
  return values;
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

LinearWeight quantize_head(const Workbench& bench, WorkFolder* work) {
  const std::int64_t rows = bench.facts.model.vocabulary, width = bench.facts.model.hidden;
  const std::string module = bench.embedding();
  const QuantizationScheme* scheme = bench.scheme(module);
  if (scheme == nullptr) return bench.original(module, rows, width);
  if (work != nullptr && work->has(kHeadPart))
    return bench.weight_of(work->load(kHeadPart, module), *scheme, rows, width);
  std::vector<float> storage;
  const DenseMatrix dense = dense_matrix(
      bench.checkpoint.require(module + ".weight", {rows, width}, {TensorType::bf16, TensorType::f32}), storage);
  QuantizedMatrix matrix = quantize_matrix(dense, *scheme, bench.settings.scales != "max");
  if (work != nullptr) {
    FinishedPart part;
    part.report = {{"name", module}, {"method", "rtn"}, {"scheme", to_string(*scheme)}};
    part.modules.emplace(module, matrix);
    work->save(kHeadPart, part);
  }
  return bench.weight_of(std::move(matrix), *scheme, rows, width);
}

void quantize_layers(const Workbench& bench, const Sequences& samples, WorkFolder& work,
                     QuantizeProgressLine& progress) {
  LayerLoop(bench, samples, work, progress).run();
}

double layer_cost(const Workbench& bench, std::size_t layer, std::int64_t tokens) {
  double cost = 0;
  for (const LayerStage stage : gemma4::kLayerStages)
    cost += stage_cost(stage_modules(bench.facts, layer, stage), tokens);
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
