// One matrix on the device: the steps of gptq.cpp for many rows at once.
#include <algorithm>

#include "input.h"

namespace facet::quantizer::cuda {
namespace {

constexpr std::int64_t kMostRows = 32768;  // of a grid's second axis
constexpr std::int64_t kBlockColumns = 128;

// Codes in device memory.
struct CodeArrays {
  CodeArrays(Session& session, std::int64_t rows, const Format& format)
      : codes(session, rows * format.columns),
        scales(session, rows * format.groups),
        zeros(session, rows * format.groups) {}
  DeviceCodes get() const { return {codes.get(), scales.get(), zeros.get()}; }

  Array<std::uint8_t> codes;
  Array<float> scales, zeros;
};

template <typename T>
void copy(Session& session, T* to, const T* from, std::int64_t count, const char* what) {
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(T), cudaMemcpyDefault, session.stream()),
        what);
}

// Working arrays for as many rows as a chunk has.
class Chunk {
 public:
  Chunk(Session& session, const Factor& factor, const QuantizeRequest& request, const Format& format,
        std::int64_t most_rows)
      : session_(session),
        factor_(factor),
        request_(request),
        format_(format),
        n_(factor.columns),
        words_per_row_((n_ + 32 / format.bits - 1) / (32 / format.bits)),
        source_(session, most_rows * n_ * (request.is_bf16 != 0 ? 2 : 4)),
        weights_(session, most_rows * n_),
        scratch_(session, most_rows * n_),
        product_(session, most_rows * n_),
        column_errors_(session, most_rows * kBlockColumns),
        nearest_(session, most_rows, format),
        best_(session, most_rows, format),
        row_values_(session, most_rows * 4),
        bad_(session, most_rows),
        words_(session, most_rows * words_per_row_),
        zeros_(session, most_rows * format.groups) {}

  void run(std::int64_t first, std::int64_t rows);

 private:
  double* row_value(std::int64_t which, std::int64_t rows) const { return row_values_.get() + which * rows; }
  void load(std::int64_t first, std::int64_t rows);
  void errors(std::int64_t rows, const DeviceCodes& codes, double* out);
  void feed_back(std::int64_t rows, double* losses);
  void refine(std::int64_t rows);
  void store(std::int64_t first, std::int64_t rows);

  Session& session_;
  const Factor& factor_;
  const QuantizeRequest& request_;
  const Format format_;
  const std::int64_t n_, words_per_row_;
  Array<unsigned char> source_;
  Array<float> weights_, scratch_, product_, column_errors_;
  CodeArrays nearest_, best_;
  Array<double> row_values_;  // errors, of round to nearest, of nothing, predicted losses
  Array<std::int32_t> bad_;
  Array<std::uint32_t> words_;
  Array<std::uint8_t> zeros_;
};

void Chunk::load(std::int64_t first, std::int64_t rows) {
  const std::int64_t width = request_.is_bf16 != 0 ? 2 : 4;
  copy(session_, source_.get(), static_cast<const unsigned char*>(request_.weights) + first * n_ * width,
       rows * n_ * width, "copying weights");
  check(load_weights(source_.get(), request_.is_bf16 != 0, rows, static_cast<std::int32_t>(n_), weights_.get(),
                     bad_.get(), session_.stream()),
        "reading weights");
  if (!factor_.correction || request_.correction == 0) return;
  copy(session_, scratch_.get(), weights_.get(), rows * n_, "copying weights");
  session_.multiply(rows, n_, n_, {scratch_.get(), n_}, {factor_.correction.get(), n_}, {weights_.get(), n_},
                    request_.correction, 1);
}

void Chunk::errors(std::int64_t rows, const DeviceCodes& codes, double* out) {
  check(difference(weights_.get(), rows, format_, codes, scratch_.get(), session_.stream()), "differences");
  session_.multiply(rows, n_, n_, {scratch_.get(), n_}, {factor_.hessian.get(), n_}, {product_.get(), n_});
  check(row_errors(scratch_.get(), product_.get(), rows, static_cast<std::int32_t>(n_), out, session_.stream()),
        "errors of rows");
}

void Chunk::feed_back(std::int64_t rows, double* losses) {
  check(permute_columns(weights_.get(), rows, static_cast<std::int32_t>(n_), factor_.order.get(), scratch_.get(),
                        session_.stream()),
        "ordering columns");
  for (std::int64_t begin = 0; begin < n_; begin += kBlockColumns) {
    const std::int64_t end = std::min(begin + kBlockColumns, n_);
    const FeedBack job{format_,
                       static_cast<std::int32_t>(begin),
                       static_cast<std::int32_t>(end),
                       request_.natural_order,
                       factor_.order.get(),
                       factor_.upper.get(),
                       scratch_.get(),
                       column_errors_.get(),
                       losses,
                       best_.get()};
    check(cuda::feed_back(job, rows, session_.stream()), "feedback");
    if (end == n_) break;
    session_.multiply(rows, n_ - end, end - begin, {column_errors_.get(), kBlockColumns},
                      {factor_.upper.get() + begin * n_ + end, n_}, {scratch_.get() + end, n_}, -1, 1);
  }
}

void Chunk::refine(std::int64_t rows) {
  check(difference(weights_.get(), rows, format_, best_.get(), scratch_.get(), session_.stream()), "differences");
  float* gradient = product_.get();
  float* change = column_errors_.get();
  session_.multiply(rows, n_, n_, {scratch_.get(), n_}, {factor_.hessian.get(), n_}, {gradient, n_});
  for (std::int32_t round = 0; round < request_.refinements; ++round) {
    for (std::int64_t begin = 0; begin < n_; begin += format_.group_size) {
      const std::int64_t end = std::min<std::int64_t>(begin + format_.group_size, n_), width = end - begin;
      const Refine job{format_,
                       static_cast<std::int32_t>(begin),
                       static_cast<std::int32_t>(end),
                       factor_.hessian.get(),
                       gradient,
                       change,
                       best_.get()};
      check(cuda::refine(job, rows, session_.stream()), "refinement");
      const float* hessian = factor_.hessian.get() + begin * n_;
      session_.multiply(rows, begin, width, {change, width}, {hessian, n_}, {gradient, n_}, -1, 1);
      session_.multiply(rows, n_ - end, width, {change, width}, {hessian + end, n_}, {gradient + end, n_}, -1, 1);
    }
  }
}

void Chunk::store(std::int64_t first, std::int64_t rows) {
  const bool symmetric = request_.symmetric != 0;
  const Finish job{format_,
                   row_value(0, rows),
                   row_value(1, rows),
                   best_.get(),
                   nearest_.get(),
                   words_.get(),
                   symmetric ? nullptr : zeros_.get(),
                   static_cast<std::int32_t>(words_per_row_)};
  check(finish(job, rows, session_.stream()), "packing");
  copy(session_, request_.words + first * words_per_row_, words_.get(), rows * words_per_row_, "reading codes");
  copy(session_, request_.scale_values + first * format_.groups, best_.scales.get(), rows * format_.groups,
       "reading scales");
  if (!symmetric)
    copy(session_, request_.zeros + first * format_.groups, zeros_.get(), rows * format_.groups, "reading zero codes");
  std::vector<double> values(static_cast<std::size_t>(rows * 4));
  std::vector<std::int32_t> bad(static_cast<std::size_t>(rows));
  copy(session_, values.data(), row_values_.get(), rows * 4, "reading errors");
  copy(session_, bad.data(), bad_.get(), rows, "reading errors");
  check(cudaStreamSynchronize(session_.stream()), "quantizing a matrix");
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto value = [&](std::int64_t which) { return values[static_cast<std::size_t>(which * rows + row)]; };
    const bool kept = value(1) < value(0);
    request_.reports[first + row] = {kept ? value(1) : value(0),         value(1),     value(2), value(3),
                                     bad[static_cast<std::size_t>(row)], kept ? 1 : 0, 0};
  }
}

void Chunk::run(std::int64_t first, std::int64_t rows) {
  load(first, rows);
  check(round_rows(weights_.get(), rows, format_, nearest_.get(), session_.stream()), "rounding");
  errors(rows, nearest_.get(), row_value(1, rows));
  errors(rows, {}, row_value(2, rows));
  check(cudaMemsetAsync(row_value(3, rows), 0, static_cast<std::size_t>(rows) * sizeof(double), session_.stream()),
        "cudaMemset");
  copy(session_, best_.codes.get(), nearest_.codes.get(), rows * n_, "copying codes");
  copy(session_, best_.scales.get(), nearest_.scales.get(), rows * format_.groups, "copying scales");
  copy(session_, best_.zeros.get(), nearest_.zeros.get(), rows * format_.groups, "copying zero codes");
  if (request_.feedback != 0) feed_back(rows, row_value(3, rows));
  if (request_.refinements > 0) refine(rows);
  errors(rows, best_.get(), row_value(0, rows));
  store(first, rows);
}

}  // namespace

void quantize_matrix(Session& session, const Factor& factor, const QuantizeRequest& request) {
  const std::int64_t n = factor.columns;
  const Format format{factor.columns,
                      static_cast<std::int32_t>((n + request.group_size - 1) / request.group_size),
                      static_cast<std::int32_t>(request.group_size),
                      request.bits,
                      request.symmetric,
                      request.half_range,
                      request.scales == Scales::largest ? 0 : 1,
                      request.scales == Scales::hessian ? factor.importance.get() : nullptr};
  const std::int64_t rows = std::min({request.rows, kMostRows, std::max<std::int64_t>(1, kChunkElements / n)});
  Chunk chunk(session, factor, request, format, rows);
  for (std::int64_t first = 0; first < request.rows; first += rows)
    chunk.run(first, std::min(rows, request.rows - first));
}

}  // namespace facet::quantizer::cuda
