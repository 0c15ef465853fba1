// Inputs of one kind of rows on the device: their Hessian, its factor, and what is quantized with them.
#pragma once

#include "kernels.h"
#include "session.h"

namespace facet::quantizer::cuda {

// What all matrices that read the same rows share; see gptq_input.h.
struct Factor {
  std::int32_t columns = 0;
  Array<std::int32_t> order;
  Array<float> upper;       // empty without feedback
  Array<float> hessian;     // full
  Array<float> importance;  // [columns]
  Array<float> correction;  // empty without
};

class Input final : public DeviceInput {
 public:
  Input(Session& session, std::int64_t columns, bool with_originals);
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  Outcome rows(std::int64_t count, std::int32_t original, float** memory, Problem* problem) noexcept override;
  Outcome add(Problem* problem) noexcept override;
  Outcome add_device(const DeviceBatch& batch, Problem* problem) noexcept override;
  Outcome finish(double* diagonal, Problem* problem) noexcept override;
  Outcome factor(const FactorRequest& request, Problem* problem) noexcept override;
  Outcome quantize(const QuantizeRequest& request, Problem* problem) noexcept override;
  void destroy() noexcept override { delete this; }

 private:
  // A batch of rows on the device, while the next one is being filled.
  struct Batch {
    Array<float> rows, originals;
    std::int64_t capacity = 0;
    cudaEvent_t consumed = nullptr;
  };
  void make_room(Batch& batch);
  Outcome upload(Batch& batch, Problem* problem);
  void accumulate(const Batch& batch);
  // After what is queued on the batch's stream.
  Outcome check_values(const DeviceBatch& batch, Problem* problem);
  void accumulate(const DeviceBatch& batch);
  // Waits for `stream` and says what find_bad() found there.
  Outcome bad_value(cudaStream_t stream, Problem* problem) const;
  bool build_factor(const FactorRequest& request);
  void build_correction();

  Session& session_;
  std::int64_t columns_;
  bool with_originals_;
  std::int64_t count_ = 0, total_ = 0;  // rows of the batch, and added
  std::array<Batch, 2> batches_;
  std::size_t next_ = 0;
  cudaEvent_t uploaded_ = nullptr;
  Array<unsigned long long> bad_;
  Array<float> product_;
  Array<__nv_bfloat16> difference_;  // of a DeviceBatch to its originals
  std::int64_t difference_rows_ = 0;
  Array<double> sums_, cross_;
  Factor factor_;
};

// Quantizes a matrix with a factor; throws Failure.
void quantize_matrix(Session& session, const Factor& factor, const QuantizeRequest& request);

}  // namespace facet::quantizer::cuda
