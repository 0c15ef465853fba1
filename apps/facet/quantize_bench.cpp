#include "quantize_bench.h"

#include "facet/backend/cpu_backend.h"
#include "facet/base/log.h"
#include "facet/base/program.h"
#include "facet/sdk/host.h"
#include "gemma4/tensor_check.h"

namespace facet::cli {
namespace {

// "auto" takes a GPU when there is one that works, and says what it took and why.
std::unique_ptr<quantizer::Engine> make_engine(const QuantizeSettings& settings, const quantizer::Blas& blas,
                                               const quantizer::ParallelFor& parallel) {
  // Rounding to nearest has no work for a device.
  if (settings.device == "cpu" || !settings.calibrated()) return quantizer::make_cpu_engine(blas, parallel);
  try {
    auto engine = quantizer::make_cuda_engine(
        library_of_program("FACET_QUANTIZER_CUDA_LIBRARY", "libfacet_quantizer_cuda.so").string());
    log(LogLevel::info, "quantizing on {}", engine->description());
    return engine;
  } catch (const quantizer::EngineError& error) {
    if (settings.device == "cuda") {
      throw_error(ErrorKind::usage, "--device cuda is not available: {}; use --device cpu or auto", error.what());
    }
    log(LogLevel::info, "quantizing on the CPU: {}", error.what());
    return quantizer::make_cpu_engine(blas, parallel);
  }
}

}  // namespace

Workbench::Workbench(const QuantizeSettings& of)
    : settings(of),
      checkpoint(Checkpoint::open(of.in)),
      facts(gemma4::read_facts(checkpoint)),
      modules(modules_to_quantize(checkpoint_job(of), checkpoint)),
      services_(std::make_unique<HostServices>(of.threads, "auto")),
      backend_(make_cpu_backend(*services_)),
      parallel_([this](std::int64_t count, const std::function<void(std::int64_t, std::int64_t)>& body) {
        sdk::Host(services_->table()).parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
          body(begin, end);
        });
      }),
      engine_(make_engine(of, blas_, parallel_)) {
  gemma4::check_tensors(checkpoint, facts);
}

std::int64_t Workbench::workers() const {
  return services_->table()->worker_count;
}

const QuantizationScheme* Workbench::scheme(const std::string& module) const {
  const auto entry = modules.find(module);
  return entry == modules.end() ? nullptr : &entry->second;
}

LinearWeight Workbench::original(const std::string& module, std::int64_t out_features, std::int64_t in_features) const {
  return load_linear(checkpoint, facts.quantization, module, out_features, in_features);
}

std::vector<float> Workbench::floats(const LinearWeight& weight) const {
  const std::int64_t width = weight.in_features();
  std::vector<float> values(static_cast<std::size_t>(weight.out_features() * width));
  parallel_(weight.out_features(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) dequantize_row(weight.view(), row, values.data() + row * width);
  });
  return values;
}

LinearWeight Workbench::weight_of(QuantizedMatrix matrix, const QuantizationScheme& scheme, std::int64_t out_features,
                                  std::int64_t in_features) const {
  const std::int64_t words = static_cast<std::int64_t>(matrix.words.size()) / out_features;
  return LinearWeight::from_parts(scheme.bits == 4 ? abi::WeightFormat::int4 : abi::WeightFormat::int8, out_features,
                                  in_features, scheme.group_size < 0 ? in_features : scheme.group_size,
                                  matrix.words.data(), 4 * words, std::move(matrix.scales), std::move(matrix.zeros));
}

void Workbench::Products::multiply(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const {
  blas_.multiply(m, n, k, {a.values, a.stride}, {b.values, b.stride}, {out.values, out.stride});
}

void Workbench::Products::multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b,
                                              Out out) const {
  blas_.multiply_transposed(m, n, k, {a.values, a.stride}, {b.values, b.stride}, {out.values, out.stride});
}

}  // namespace facet::cli
