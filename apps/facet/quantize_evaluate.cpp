#include "quantize_evaluate.h"

#include <cmath>
#include <span>

#include "facet/measure/logit_difference.h"
#include "facet/sampling/sampler.h"

namespace facet::cli {
namespace {

using gemma4::CalibrationForward;
using gemma4::LayerMatrices;
using gemma4::LayerStage;

// Rows whose logits are in memory at once.
constexpr std::int64_t kLogitRows = 64;

struct Sums {
  double nll = 0, source_nll = 0;
  LogitDifferenceSum difference;

  void add(const Sums& other) {
    nll += other.nll;
    source_nll += other.source_nll;
    difference.add(other.difference);
  }
};

void compare_row(std::span<const float> logits, std::span<const float> source, std::int32_t target, Sums& sums) {
  sums.nll -= log_probability(logits, target);
  sums.source_nll -= log_probability(source, target);
  sums.difference.add(compare_logits(source, logits));
}

class Evaluation {
 public:
  Evaluation(const Workbench& bench, const Sequences& sequences)
      : bench_(bench), sequences_(sequences), quantized_(make()), source_(make()) {}

  void embed(const LinearWeight& embedding, const LinearWeight& head) {
    const gemma4::ModelConfig& model = bench_.facts.model;
    const LinearWeight source = bench_.original(bench_.embedding(), model.vocabulary, model.hidden);
    for_sequences([&](std::size_t i) {
      quantized_.embed(i, embedding.view());
      source_.embed(i, source.view());
    });
    head_ = bench_.floats(head);
    source_head_ = bench_.floats(bench_.original(bench_.head_source(), model.vocabulary, model.hidden));
  }

  void run_layer(std::size_t layer, const MatrixOf& matrix_of) {
    LayerMatrices matrices, originals;
    quantized_.begin_layer(layer);
    source_.begin_layer(layer);
    for (const LayerStage stage : gemma4::kLayerStages) {
      const gemma4::StageModules modules = stage_modules(bench_.facts, layer, stage);
      for (const gemma4::StageModule& module : modules.modules) {
        matrices[stage].push_back(matrix_of(layer, module, modules.in_features));
        originals[stage].push_back(
            bench_.floats(bench_.original(module.name, module.out_features, modules.in_features)));
      }
      for_sequences([&](std::size_t i) {
        quantized_.advance(stage, i, matrices);
        source_.advance(stage, i, originals);
      });
    }
    bench_.checkpoint.release_pages();
  }

  std::vector<Sums> compare() const {
    std::vector<Sums> sums(sequences_.size());
    for_sequences([&](std::size_t i) { compare_sequence(i, sums[i]); });
    return sums;
  }

 private:
  CalibrationForward make() const {
    return {bench_.facts, bench_.checkpoint, bench_.backend(), bench_.products(), sequences_};
  }
  void for_sequences(const std::function<void(std::size_t)>& body) const {
    bench_.parallel()(static_cast<std::int64_t>(sequences_.size()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) body(static_cast<std::size_t>(i));
    });
  }
  void logits(const float* rows, std::int64_t count, const std::vector<float>& head, std::vector<float>& out) const {
    const gemma4::ModelConfig& model = bench_.facts.model;
    out.resize(static_cast<std::size_t>(count * model.vocabulary));
    bench_.products().multiply_transposed(count, model.vocabulary, model.hidden, {rows, model.hidden},
                                          {head.data(), model.hidden}, {out.data(), model.vocabulary});
    if (model.soft_cap > 0) bench_.backend().soft_cap(out.data(), count * model.vocabulary, model.soft_cap);
  }
  void compare_sequence(std::size_t index, Sums& sums) const {
    const gemma4::ModelConfig& model = bench_.facts.model;
    const std::vector<std::int32_t>& ids = sequences_[index];
    std::vector<float> rows(ids.size() * static_cast<std::size_t>(model.hidden)), source_rows(rows.size());
    quantized_.head_input(index, rows.data());
    source_.head_input(index, source_rows.data());
    std::vector<float> now, before;
    const auto predictions = static_cast<std::int64_t>(ids.size()) - 1;
    for (std::int64_t first = 0; first < predictions; first += kLogitRows) {
      const std::int64_t count = std::min(kLogitRows, predictions - first);
      logits(rows.data() + first * model.hidden, count, head_, now);
      logits(source_rows.data() + first * model.hidden, count, source_head_, before);
      for (std::int64_t row = 0; row < count; ++row) {
        const auto vocabulary = static_cast<std::size_t>(model.vocabulary);
        compare_row({now.data() + row * model.vocabulary, vocabulary},
                    {before.data() + row * model.vocabulary, vocabulary},
                    ids[static_cast<std::size_t>(first + row + 1)], sums);
      }
    }
  }

  const Workbench& bench_;
  const Sequences& sequences_;
  CalibrationForward quantized_, source_;
  std::vector<float> head_, source_head_;
};

}  // namespace

Json evaluate_quantized(const Workbench& bench, const Sequences& sequences, const LinearWeight& embedding,
                        const LinearWeight& head, const MatrixOf& matrix_of) {
  Evaluation evaluation(bench, sequences);
  evaluation.embed(embedding, head);
  for (std::size_t layer = 0; layer < bench.facts.model.layers.size(); ++layer) evaluation.run_layer(layer, matrix_of);
  const std::vector<Sums> sums = evaluation.compare();
  Sums total;
  std::map<std::size_t, Sums> buckets;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    total.add(sums[i]);
    buckets[sequences[i].size()].add(sums[i]);
  }
  const auto mean = [](double sum, const Sums& of) { return sum / static_cast<double>(of.difference.predictions); };
  Json by_length = Json::object();
  for (const auto& [length, of] : buckets)
    by_length[std::to_string(length)] = {{"nll", mean(of.nll, of)}, {"source_nll", mean(of.source_nll, of)}};
  return {{"file", bench.settings.evaluate},
          {"nll", mean(total.nll, total)},
          {"perplexity", std::exp(mean(total.nll, total))},
          {"source_nll", mean(total.source_nll, total)},
          {"mean_kl", total.difference.mean_kl()},
          {"top1_agreement", total.difference.top1_agreement()},
          {"predictions", total.difference.predictions},
          {"buckets", by_length}};
}

Sequences read_evaluation(const QuantizeSettings& settings, const gemma4::ModelConfig& model) {
  Sequences sequences = read_token_lines(settings.evaluate);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].size() < 2)
      throw_error(ErrorKind::usage, "{}: sequence {} has fewer than 2 tokens", settings.evaluate, i + 1);
  }
  require_fit(sequences, settings.evaluate, model);
  return sequences;
}

}  // namespace facet::cli
