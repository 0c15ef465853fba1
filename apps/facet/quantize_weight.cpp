#include "quantize_weight.h"

#include <thread>

#include "facet/sdk/numeric.h"

namespace facet::cli {
namespace {

// Rows are independent, so a thread for each processor takes one piece.
void parallel_rows(std::int64_t count, const std::function<void(std::int64_t, std::int64_t)>& body) {
  const auto workers = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] { body(count * worker / workers, count * (worker + 1) / workers); });
  }
  for (std::thread& thread : threads) thread.join();
}

quantizer::Quantized quantize(const quantizer::Matrix& matrix, const quantizer::RtnOptions& options) {
  try {
    return quantizer::quantize_rtn(matrix, options, parallel_rows);
  } catch (const quantizer::QuantizeError& error) {
    throw_error(ErrorKind::checkpoint, "{}", error.what());
  }
}

LinearWeight to_bf16(const LinearWeight& weight) {
  const std::int64_t width = weight.in_features();
  std::vector<std::uint16_t> values(static_cast<std::size_t>(weight.out_features() * width));
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t r = 0; r < weight.out_features(); ++r) {
    dequantize_row(weight.view(), r, row.data());
    std::transform(row.begin(), row.end(), values.begin() + r * width, sdk::float_to_bf16);
  }
  return LinearWeight::from_parts(abi::WeightFormat::bf16, weight.out_features(), width, 0, values.data(), 2 * width,
                                  {}, {});
}

}  // namespace

LinearWeight quantize_weight(const LinearWeight& weight, const LinearFormat& format) {
  LinearWeight dense = to_bf16(weight);
  if (format.format == abi::WeightFormat::bf16) return dense;
  const quantizer::Matrix matrix{"output head", quantizer::Matrix::Type::bf16, dense.view().values,
                                 dense.out_features(), dense.in_features()};
  quantizer::RtnOptions options;
  options.bits = format.format == abi::WeightFormat::int4 ? 4 : 8;
  options.symmetric = format.symmetric;
  options.group_size = format.group_size;
  options.search_scales = options.bits == 4;
  quantizer::Quantized made = quantize(matrix, options);
  const std::int64_t words = sdk::ceil_div(dense.in_features() * options.bits, 32);
  return LinearWeight::from_parts(format.format, dense.out_features(), dense.in_features(), format.group_size,
                                  made.words.data(), 4 * words, std::move(made.scales), std::move(made.zeros));
}

quantizer::Matrix quantizer_matrix(const DenseMatrix& matrix) {
  const auto type = matrix.type == TensorType::bf16 ? quantizer::Matrix::Type::bf16 : quantizer::Matrix::Type::f32;
  return {matrix.name, type, matrix.values, matrix.out_features, matrix.in_features};
}

QuantizedMatrix quantize_matrix(const DenseMatrix& matrix, const QuantizationScheme& scheme, bool search_scales) {
  quantizer::RtnOptions options;
  options.bits = scheme.bits;
  options.symmetric = scheme.symmetric;
  options.group_size = scheme.group_size;
  options.search_scales = search_scales;
  quantizer::Quantized made = quantize(quantizer_matrix(matrix), options);
  return {std::move(made.words), std::move(made.scales), std::move(made.zeros)};
}

}  // namespace facet::cli
