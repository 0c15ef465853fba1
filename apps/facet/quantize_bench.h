// What every step of a quantization works with: the source, threads, matrix products.
#pragma once

#include "facet/plugin/host_services.h"
#include "facet/quantizer/engine.h"
#include "gemma4/calibration_forward.h"
#include "quantize_samples.h"

namespace facet::cli {

class Workbench {
 public:
  // Opens the checkpoint and checks it. Throws as Checkpoint::open, read_facts and modules_to_quantize do.
  explicit Workbench(const QuantizeSettings& settings);

  const QuantizeSettings& settings;
  const Checkpoint checkpoint;
  const gemma4::CheckpointFacts facts;
  const std::map<std::string, QuantizationScheme> modules;  // to quantize

  HostServices& services() const { return *services_; }
  Backend& backend() const { return *backend_; }
  const quantizer::Blas& blas() const { return blas_; }
  const gemma4::MatrixProducts& products() const { return products_; }
  // Pieces of a loop over the threads of the host.
  const quantizer::ParallelFor& parallel() const { return parallel_; }
  std::int64_t workers() const;

  // What quantizes with calibration inputs: the CPU or a GPU, as settings.device says.
  quantizer::Engine& engine() const { return *engine_; }

  std::string embedding() const { return facts.prefix + "embed_tokens"; }
  // The module whose weights the output head has in the source: the embedding, or a head of its own.
  std::string head_source() const { return gemma4::full_name(facts, kHeadModule); }
  // The scheme of a module that is quantized; null when it stays as it is.
  const QuantizationScheme* scheme(const std::string& module) const;
  // A module as the source has it.
  LinearWeight original(const std::string& module, std::int64_t out_features, std::int64_t in_features) const;
  std::vector<float> floats(const LinearWeight& weight) const;
  // Values of a matrix that was quantized.
  LinearWeight weight_of(QuantizedMatrix matrix, const QuantizationScheme& scheme, std::int64_t out_features,
                         std::int64_t in_features) const;

 private:
  class Products final : public gemma4::MatrixProducts {
   public:
    explicit Products(const quantizer::Blas& blas) : blas_(blas) {}
    void multiply(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const override;
    void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const override;

   private:
    const quantizer::Blas& blas_;
  };

  std::unique_ptr<HostServices> services_;
  std::unique_ptr<Backend> backend_;
  quantizer::Blas blas_;
  Products products_{blas_};
  quantizer::ParallelFor parallel_;
  std::unique_ptr<quantizer::Engine> engine_;
};

}  // namespace facet::cli
