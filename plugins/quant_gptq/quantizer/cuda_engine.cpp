#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "cuda/device_api.h"
#include "facet/quantizer/engine.h"
#include "gptq_input.h"
#include "matrix_rows.h"

namespace facet::quantizer {
namespace {

using cuda::Outcome;
using cuda::Problem;

void check(Outcome outcome, const Problem& problem, const char* doing) {
  if (outcome == Outcome::ok) return;
  throw EngineError(std::string("the CUDA device failed in ") + doing + ": " + problem.text);
}

struct Destroy {
  template <typename T>
  void operator()(T* object) const {
    object->destroy();
  }
};

class CudaCalibration final : public Calibration {
 public:
  CudaCalibration(cuda::Device& device, std::int64_t columns, const GptqOptions& options, bool with_originals)
      : columns_(columns), options_(options), with_originals_(with_originals) {
    Problem problem{};
    cuda::DeviceInput* input = nullptr;
    check(device.begin(columns, with_originals ? 1 : 0, &input, &problem), problem, "making room for a Hessian");
    input_.reset(input);
  }

  std::int64_t columns() const override { return columns_; }
  float* rows(std::int64_t count) override {
    count_ = count;
    return memory(count, 0);
  }
  float* originals(std::int64_t count) override { return memory(count, 1); }
  void add() override {
    Problem problem{};
    const Outcome outcome = input_->add(&problem);
    if (outcome == Outcome::bad_value) throw InputError(problem.row, problem.column);
    check(outcome, problem, "adding inputs");
    facts_.rows += count_;
  }
  void add(const DeviceRows& rows) override {
    Problem problem{};
    const Outcome outcome = input_->add_device({rows.rows, rows.originals, rows.count, rows.stream}, &problem);
    if (outcome == Outcome::bad_value) throw InputError(problem.row, problem.column);
    check(outcome, problem, "adding inputs");
    facts_.rows += rows.count;
  }
  void factor() override {
    Problem problem{};
    std::vector<double> values(static_cast<std::size_t>(columns_));
    check(input_->finish(values.data(), &problem), problem, "reading the Hessian");
    const Diagonal diagonal(std::move(values), options_.order);
    facts_.dead_columns = diagonal.dead;
    cuda::FactorRequest request{diagonal.order.data(),      diagonal.values.data(),
                                diagonal.importance.data(), 0,
                                options_.feedback ? 1 : 0,  options_.correction != 0 && with_originals_ ? 1 : 0};
    const Damped used = factor_with_damping(diagonal, options_.feedback ? options_.damping : 0, [&](double damping) {
      request.damping = damping;
      const Outcome outcome = input_->factor(request, &problem);
      if (outcome == Outcome::not_positive_definite) return false;
      check(outcome, problem, "factoring the Hessian");
      return true;
    });
    facts_.damping = used.damping;
    facts_.failures = used.failures;
  }
  Facts facts() const override { return facts_; }
  GptqResult quantize(const Matrix& matrix, const GptqOptions& options) override;

 private:
  float* memory(std::int64_t count, std::int32_t original) {
    Problem problem{};
    float* rows = nullptr;
    check(input_->rows(count, original, &rows, &problem), problem, "making room for inputs");
    return rows;
  }

  std::int64_t columns_;
  const GptqOptions options_;
  bool with_originals_;
  std::unique_ptr<cuda::DeviceInput, Destroy> input_;
  std::int64_t count_ = 0;
  Facts facts_;
};

cuda::QuantizeRequest request_for(const Matrix& matrix, const GptqOptions& options, const Cut& cut) {
  cuda::QuantizeRequest request{};
  request.weights = matrix.values;
  request.is_bf16 = matrix.type == Matrix::Type::bf16 ? 1 : 0;
  request.bits = options.bits;
  request.rows = matrix.rows;
  request.group_size = std::min(cut.group_size, cut.columns);
  request.symmetric = options.symmetric ? 1 : 0;
  request.half_range = options.range == SymmetricRange::half ? 1 : 0;
  request.scales = options.scales == ScaleChoice::largest  ? cuda::Scales::largest
                   : options.scales == ScaleChoice::search ? cuda::Scales::search
                                                           : cuda::Scales::hessian;
  request.natural_order = options.order == ColumnOrder::natural ? 1 : 0;
  request.feedback = options.feedback ? 1 : 0;
  request.refinements = options.refinements;
  request.correction = static_cast<float>(options.correction);
  return request;
}

GptqResult CudaCalibration::quantize(const Matrix& matrix, const GptqOptions& options) {
  check_format(matrix, options.bits, options.group_size);
  require_width(matrix, columns_);
  const Cut cut(matrix.columns, options.bits, options.group_size);
  GptqResult result;
  result.quantized = empty_result(cut, matrix.rows, options.symmetric);
  std::vector<cuda::RowReport> reports(static_cast<std::size_t>(matrix.rows));
  cuda::QuantizeRequest request = request_for(matrix, options, cut);
  // A block of columns must hold whole groups.
  if (request.group_size > cuda::kMostGroup || (cut.groups > 1 && cuda::kMostGroup % request.group_size != 0)) {
    throw EngineError("tensor '" + matrix.name + "': the CUDA quantizer has groups that divide " +
                      std::to_string(cuda::kMostGroup) + " inputs, not " + std::to_string(request.group_size) +
                      "; use the CPU for them");
  }
  request.words = result.quantized.words.data();
  request.scale_values = result.quantized.scales.data();
  request.zeros = options.symmetric ? nullptr : result.quantized.zeros.data();
  request.reports = reports.data();
  Problem problem{};
  check(input_->quantize(request, &problem), problem, "quantizing a matrix");
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const cuda::RowReport& report = reports[static_cast<std::size_t>(row)];
    if (report.bad_column >= 0) refuse_value(matrix, row, report.bad_column);
    result.error += report.error;
    result.nearest_error += report.nearest_error;
    result.output += report.output;
    result.predicted_loss += report.predicted_loss;
    result.kept_rows += report.kept;
  }
  return result;
}

// CUDA's context and kernels, and what cuBLAS and cuSOLVER take for themselves: 0.84 GiB on an H200 with CUDA 13.
constexpr std::uint64_t kLibraryBytes = std::uint64_t{1} << 30;

class CudaEngine final : public Engine {
 public:
  explicit CudaEngine(cuda::Device* device) : device_(device) {}
  std::string description() const override { return facts().name; }
  std::uint64_t free_bytes() const override { return facts().free_bytes; }
  double blas_seconds() const override { return device_->blas_seconds(); }
  std::uint64_t device_bytes(std::int64_t columns, std::int64_t batch_rows, bool with_originals,
                             RowsFrom from) const override {
    const auto cells = static_cast<std::uint64_t>(columns) * static_cast<std::uint64_t>(columns);
    const std::uint64_t values = static_cast<std::uint64_t>(columns) * static_cast<std::uint64_t>(batch_rows);
    // Two batches of copied rows; of rows on the device the difference to the originals, in bf16 and for two models.
    const std::uint64_t batch = from == RowsFrom::host ? 2 * values * sizeof(float) : (with_originals ? values : 0);
    // While batches arrive: sums in double and a product, twice the sums with originals. While factoring: sums, H, the
    // matrix in double and U; a correction adds three matrices where the one in double was. Then U, H and a chunk.
    const std::uint64_t adding = cells * (with_originals ? 20 : 12) + batch * (with_originals ? 2 : 1);
    const std::uint64_t factoring = cells * (with_originals ? 36 : 24);
    const std::uint64_t quantizing = cells * (with_originals ? 12 : 8) + cuda::kChunkBytes;
    return std::max({adding, factoring, quantizing}) + kLibraryBytes;
  }
  std::unique_ptr<Calibration> begin(std::int64_t columns, const GptqOptions& options, bool with_originals) override {
    return std::make_unique<CudaCalibration>(*device_, columns, options, with_originals);
  }

 private:
  cuda::DeviceFacts facts() const {
    Problem problem{};
    cuda::DeviceFacts facts{};
    check(device_->facts(&facts, &problem), problem, "asking the device");
    return facts;
  }

  std::unique_ptr<cuda::Device, Destroy> device_;
};

}  // namespace

std::unique_ptr<Engine> make_cuda_engine(const std::string& library) {
  // Never unloaded: the driver keeps threads of its own.
  void* loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) throw EngineError(::dlerror());
  const auto make = reinterpret_cast<cuda::MakeDevice>(::dlsym(loaded, cuda::kDeviceApiSymbol));
  if (make == nullptr) throw EngineError(library + " has no " + cuda::kDeviceApiSymbol + ": it is of another version");
  cuda::Device* device = nullptr;
  Problem problem{};
  if (make(cuda::kDeviceApiVersion, 0, &device, &problem) != Outcome::ok) throw EngineError(problem.text);
  return std::make_unique<CudaEngine>(device);
}

}  // namespace facet::quantizer
