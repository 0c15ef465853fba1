#include "input.h"

#include <algorithm>

namespace facet::quantizer::cuda {

Input::Input(Session& session, std::int64_t columns, bool with_originals)
    : session_(session),
      columns_(columns),
      with_originals_(with_originals),
      bad_(session, 1),
      product_(session, columns * columns),
      sums_(session, columns * columns) {
  const auto bytes = static_cast<std::size_t>(columns * columns) * sizeof(double);
  check(cudaMemsetAsync(sums_.get(), 0, bytes, session.stream()), "cudaMemset");
  if (with_originals) {
    cross_ = Array<double>(session, columns * columns);
    check(cudaMemsetAsync(cross_.get(), 0, bytes, session.stream()), "cudaMemset");
  }
  check(cudaEventCreateWithFlags(&uploaded_, cudaEventDisableTiming), "cudaEventCreate");
  for (Batch& batch : batches_)
    check(cudaEventCreateWithFlags(&batch.consumed, cudaEventDisableTiming), "cudaEventCreate");
}

Input::~Input() {
  cudaStreamSynchronize(session_.copies());
  for (const Batch& batch : batches_) cudaEventDestroy(batch.consumed);
  cudaEventDestroy(uploaded_);
}

Outcome Input::rows(std::int64_t count, std::int32_t original, float** memory, Problem* problem) noexcept {
  return guarded(problem, [&] {
    count_ = count;
    *memory = static_cast<float*>(
        session_.pinned(original != 0 ? 1 : 0, static_cast<std::uint64_t>(count * columns_) * sizeof(float)));
    return Outcome::ok;
  });
}

Outcome Input::add(Problem* problem) noexcept {
  return guarded(problem, [&] {
    Batch& batch = batches_[next_];
    next_ = 1 - next_;
    make_room(batch);
    if (const Outcome outcome = upload(batch, problem); outcome != Outcome::ok) return outcome;
    accumulate(batch);
    total_ += count_;
    return Outcome::ok;
  });
}

void Input::make_room(Batch& batch) {
  if (batch.capacity >= count_) return;
  batch.rows = Array<float>(session_, count_ * columns_);
  if (with_originals_) batch.originals = Array<float>(session_, count_ * columns_);
  batch.capacity = count_;
  // Memory of the stream's order, used by the other stream from now on.
  check(cudaEventRecord(batch.consumed, session_.stream()), "cudaEventRecord");
}

// Copies and looks for values that are not finite while earlier batches are still being multiplied.
Outcome Input::upload(Batch& batch, Problem* problem) {
  cudaStream_t copies = session_.copies();
  const std::int64_t values = count_ * columns_;
  check(cudaStreamWaitEvent(copies, batch.consumed), "cudaStreamWaitEvent");
  for (std::size_t which = 0; which < (with_originals_ ? 2 : 1); ++which) {
    float* device = which == 0 ? batch.rows.get() : batch.originals.get();
    check(cudaMemcpyAsync(device, session_.pinned(which, 0), static_cast<std::size_t>(values) * sizeof(float),
                          cudaMemcpyHostToDevice, copies),
          "copying inputs");
    check(cudaMemsetAsync(bad_.get(), 0xff, sizeof(unsigned long long), copies), "cudaMemset");
    check(find_bad(device, values, bad_.get(), copies), "looking for NaN");
    if (const Outcome outcome = bad_value(copies, problem); outcome != Outcome::ok) return outcome;
  }
  check(cudaEventRecord(uploaded_, copies), "cudaEventRecord");
  check(cudaStreamWaitEvent(session_.stream(), uploaded_), "cudaStreamWaitEvent");
  return Outcome::ok;
}

Outcome Input::bad_value(cudaStream_t stream, Problem* problem) const {
  unsigned long long first = ~0ull;
  check(cudaMemcpyAsync(&first, bad_.get(), sizeof first, cudaMemcpyDeviceToHost, stream), "reading a result");
  check(cudaStreamSynchronize(stream), "copying inputs");
  if (first == ~0ull) return Outcome::ok;
  problem->row = static_cast<std::int64_t>(first) / columns_;
  problem->column = static_cast<std::int64_t>(first) % columns_;
  return Outcome::bad_value;
}

Outcome Input::add_device(const DeviceBatch& batch, Problem* problem) noexcept {
  return guarded(problem, [&] {
    if (const Outcome outcome = check_values(batch, problem); outcome != Outcome::ok) return outcome;
    accumulate(batch);
    total_ += batch.count;
    return Outcome::ok;
  });
}

Outcome Input::check_values(const DeviceBatch& batch, Problem* problem) {
  cudaStream_t stream = session_.stream();
  check(cudaEventRecord(uploaded_, static_cast<cudaStream_t>(batch.stream)), "cudaEventRecord");
  check(cudaStreamWaitEvent(stream, uploaded_), "cudaStreamWaitEvent");
  check(cudaMemsetAsync(bad_.get(), 0xff, sizeof(unsigned long long), stream), "cudaMemset");
  for (const void* rows : {batch.rows, batch.originals}) {
    if (rows == nullptr) continue;
    check(find_bad(static_cast<const __nv_bfloat16*>(rows), batch.count * columns_, bad_.get(), stream),
          "looking for NaN");
  }
  return bad_value(stream, problem);
}

void Input::accumulate(const DeviceBatch& batch) {
  const auto n = static_cast<std::int32_t>(columns_);
  cudaStream_t stream = session_.stream();
  const auto* rows = static_cast<const __nv_bfloat16*>(batch.rows);
  session_.square(columns_, batch.count, rows, product_.get());
  check(cuda::accumulate(product_.get(), n, true, sums_.get(), stream), "adding a product");
  if (with_originals_) {
    if (difference_rows_ < batch.count) {
      difference_ = Array<__nv_bfloat16>(session_, batch.count * columns_);
      difference_rows_ = batch.count;
    }
    // Exact where a value is within a factor of two of its original's, else rounded to bf16.
    check(subtract(static_cast<const __nv_bfloat16*>(batch.originals), rows, batch.count * columns_, difference_.get(),
                   stream),
          "subtracting inputs");
    session_.multiply_from_columns(columns_, batch.count, difference_.get(), rows, product_.get());
    check(cuda::accumulate(product_.get(), n, false, cross_.get(), stream), "adding a product");
  }
  check(cudaEventRecord(uploaded_, stream), "cudaEventRecord");
  check(cudaStreamWaitEvent(static_cast<cudaStream_t>(batch.stream), uploaded_), "cudaStreamWaitEvent");
}

void Input::accumulate(const Batch& batch) {
  const auto n = static_cast<std::int32_t>(columns_);
  cudaStream_t stream = session_.stream();
  session_.square(columns_, count_, batch.rows.get(), product_.get());
  check(cuda::accumulate(product_.get(), n, true, sums_.get(), stream), "adding a product");
  if (with_originals_) {
    check(subtract(batch.originals.get(), batch.rows.get(), count_ * columns_, batch.originals.get(), stream),
          "subtracting inputs");
    session_.multiply_from_columns(columns_, columns_, count_, {batch.originals.get(), columns_},
                                   {batch.rows.get(), columns_}, {product_.get(), columns_});
    check(cuda::accumulate(product_.get(), n, false, cross_.get(), stream), "adding a product");
  }
  check(cudaEventRecord(batch.consumed, stream), "cudaEventRecord");
}

Outcome Input::finish(double* diagonal, Problem* problem) noexcept {
  return guarded(problem, [&] {
    for (Batch& batch : batches_) {
      batch.rows = {};
      batch.originals = {};
      batch.capacity = 0;
    }
    difference_ = {};
    difference_rows_ = 0;
    product_ = {};
    const Array<double> values(session_, columns_);
    const double scale = total_ == 0 ? 0.0 : 2.0 / static_cast<double>(total_);
    check(read_diagonal(sums_.get(), static_cast<std::int32_t>(columns_), scale, values.get(), session_.stream()),
          "reading the diagonal");
    check(cudaMemcpyAsync(diagonal, values.get(), static_cast<std::size_t>(columns_) * sizeof(double),
                          cudaMemcpyDeviceToHost, session_.stream()),
          "reading the diagonal");
    check(cudaStreamSynchronize(session_.stream()), "the Hessian");
    return Outcome::ok;
  });
}

Outcome Input::factor(const FactorRequest& request, Problem* problem) noexcept {
  return guarded(problem, [&] {
    const auto n = static_cast<std::int32_t>(columns_);
    const double scale = total_ == 0 ? 0.0 : 2.0 / static_cast<double>(total_);
    cudaStream_t stream = session_.stream();
    factor_.columns = n;
    if (!factor_.hessian) {
      factor_.hessian = Array<float>(session_, columns_ * columns_);
      check(full_hessian(sums_.get(), n, scale, factor_.hessian.get(), stream), "the Hessian");
      factor_.importance = Array<float>(session_, columns_);
      factor_.order = Array<std::int32_t>(session_, columns_);
      const std::vector<std::int32_t> order(request.order, request.order + n);
      check(cudaMemcpyAsync(factor_.order.get(), order.data(), order.size() * sizeof(std::int32_t),
                            cudaMemcpyHostToDevice, stream),
            "copying the order");
      check(cudaMemcpyAsync(factor_.importance.get(), request.importance, order.size() * sizeof(float),
                            cudaMemcpyHostToDevice, stream),
            "copying weights");
      check(cudaStreamSynchronize(stream), "the Hessian");
    }
    if (request.with_feedback == 0) return Outcome::ok;
    if (!build_factor(request)) return Outcome::not_positive_definite;
    if (request.with_correction != 0 && with_originals_) build_correction();
    sums_ = {};
    cross_ = {};
    return Outcome::ok;
  });
}

bool Input::build_factor(const FactorRequest& request) {
  const auto n = static_cast<std::int32_t>(columns_);
  cudaStream_t stream = session_.stream();
  const Array<double> diagonal(session_, columns_), matrix(session_, columns_ * columns_);
  check(cudaMemcpyAsync(diagonal.get(), request.diagonal, static_cast<std::size_t>(n) * sizeof(double),
                        cudaMemcpyHostToDevice, stream),
        "copying the diagonal");
  check(turned_hessian(sums_.get(), n, 2.0 / static_cast<double>(std::max<std::int64_t>(total_, 1)),
                       factor_.order.get(), diagonal.get(), request.damping, matrix.get(), stream),
        "damping");
  if (!session_.invert_factor(columns_, matrix.get())) return false;
  factor_.upper = Array<float>(session_, columns_ * columns_);
  check(turn_back(matrix.get(), n, factor_.upper.get(), stream), "the factor");
  return true;
}

// C (H + damping)^-1 = C U^T U, in the order of columns.
void Input::build_correction() {
  const auto n = static_cast<std::int32_t>(columns_);
  cudaStream_t stream = session_.stream();
  const Array<float> cross(session_, columns_ * columns_), product(session_, columns_ * columns_);
  factor_.correction = Array<float>(session_, columns_ * columns_);
  check(gather_columns(cross_.get(), n, 2.0 / static_cast<double>(total_), factor_.order.get(), cross.get(), stream),
        "the correction");
  session_.multiply_transposed(columns_, columns_, columns_, {cross.get(), columns_}, {factor_.upper.get(), columns_},
                               {product.get(), columns_});
  session_.multiply(columns_, columns_, columns_, {product.get(), columns_}, {factor_.upper.get(), columns_},
                    {cross.get(), columns_});
  check(scatter_columns(cross.get(), n, factor_.order.get(), factor_.correction.get(), stream), "the correction");
}

Outcome Input::quantize(const QuantizeRequest& request, Problem* problem) noexcept {
  return guarded(problem, [&] {
    quantize_matrix(session_, factor_, request);
    return Outcome::ok;
  });
}

}  // namespace facet::quantizer::cuda
