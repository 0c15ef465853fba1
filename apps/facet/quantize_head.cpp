#include "quantize_head.h"

#include "quantize_weight.h"

namespace facet::cli {
namespace {

// A table without calibration.
QuantizedMatrix round_matrix(const Workbench& bench, const std::string& module, const QuantizationScheme& scheme) {
  const gemma4::ModelConfig& model = bench.facts.model;
  std::vector<float> storage;
  const DenseMatrix dense = dense_matrix(bench.checkpoint.require(module + ".weight", {model.vocabulary, model.hidden},
                                                                  {TensorType::bf16, TensorType::f32}),
                                         storage);
  return quantize_matrix(dense, scheme, bench.settings.scales != "max");
}

}  // namespace

LinearWeight quantize_table(const Workbench& bench, WorkFolder* work) {
  const std::int64_t rows = bench.facts.model.vocabulary, width = bench.facts.model.hidden;
  const std::string module = bench.embedding();
  const QuantizationScheme* scheme = bench.scheme(module);
  if (scheme == nullptr) return bench.original(module, rows, width);
  if (work != nullptr && work->has(kTablePart))
    return bench.weight_of(work->load(kTablePart, module), *scheme, rows, width);
  QuantizedMatrix matrix = round_matrix(bench, module, *scheme);
  if (work != nullptr) {
    FinishedPart part;
    part.report = {{"name", module}, {"method", "rtn"}, {"scheme", to_string(*scheme)}};
    part.modules.emplace(module, matrix);
    work->save(kTablePart, part);
  }
  return bench.weight_of(std::move(matrix), *scheme, rows, width);
}

LinearWeight finished_head(const Workbench& bench, const WorkFolder* work) {
  const std::int64_t rows = bench.facts.model.vocabulary, width = bench.facts.model.hidden;
  if (const QuantizationScheme* scheme = bench.scheme(kHeadModule)) {
    QuantizedMatrix matrix =
        work != nullptr ? work->load(kHeadPart, kHeadModule) : round_matrix(bench, bench.head_source(), *scheme);
    return bench.weight_of(std::move(matrix), *scheme, rows, width);
  }
  const std::string source = bench.head_source();
  if (source != bench.embedding() || bench.scheme(source) == nullptr) return bench.original(source, rows, width);
  return bench.weight_of(
      work != nullptr ? work->load(kTablePart, source) : round_matrix(bench, source, *bench.scheme(source)),
      *bench.scheme(source), rows, width);
}

}  // namespace facet::cli
