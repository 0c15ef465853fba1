#include <optional>

#include "facet/quantizer/engine.h"

namespace facet::quantizer {
namespace {

class CpuCalibration final : public Calibration {
 public:
  CpuCalibration(std::int64_t columns, const GptqOptions& options, bool with_originals, const Blas& blas,
                 const ParallelFor& parallel)
      : options_(options), blas_(blas), parallel_(parallel), hessian_(columns, with_originals) {}

  std::int64_t columns() const override { return hessian_.columns(); }
  float* rows(std::int64_t count) override {
    count_ = count;
    rows_.resize(static_cast<std::size_t>(count * columns()));
    return rows_.data();
  }
  float* originals(std::int64_t count) override {
    originals_.resize(static_cast<std::size_t>(count * columns()));
    return originals_.data();
  }
  void add() override {
    hessian_.add(rows_.data(), count_, blas_, parallel_, hessian_.has_original() ? originals_.data() : nullptr);
  }
  void add(const DeviceRows&) override { throw EngineError("the CPU has no rows in device memory"); }
  void factor() override {
    rows_ = {};
    originals_ = {};
    input_.emplace(hessian_, options_, blas_, parallel_);
  }
  Facts facts() const override {
    return {hessian_.rows(), input_->dead_columns(), input_->damping(), input_->failures()};
  }
  GptqResult quantize(const Matrix& matrix, const GptqOptions& options) override {
    return quantize_gptq(matrix, *input_, options, blas_, parallel_);
  }

 private:
  const GptqOptions options_;
  const Blas& blas_;
  const ParallelFor& parallel_;
  Hessian hessian_;
  std::int64_t count_ = 0;
  std::vector<float> rows_, originals_;
  std::optional<GptqInput> input_;
};

class CpuEngine final : public Engine {
 public:
  CpuEngine(const Blas& blas, const ParallelFor& parallel) : blas_(blas), parallel_(parallel) {}
  std::string description() const override { return "cpu"; }
  std::unique_ptr<Calibration> begin(std::int64_t columns, const GptqOptions& options, bool with_originals) override {
    return std::make_unique<CpuCalibration>(columns, options, with_originals, blas_, parallel_);
  }

 private:
  const Blas& blas_;
  const ParallelFor& parallel_;
};

}  // namespace

std::unique_ptr<Engine> make_cpu_engine(const Blas& blas, const ParallelFor& parallel) {
  return std::make_unique<CpuEngine>(blas, parallel);
}

}  // namespace facet::quantizer
