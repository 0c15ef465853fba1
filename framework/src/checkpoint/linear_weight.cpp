#include "facet/checkpoint/linear_weight.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "facet/base/error.h"
#include "facet/base/log.h"
#include "facet/checkpoint/float_bits.h"
#include "gptq_weight.h"
#include "tensor_values.h"

namespace facet {

using checkpoint_detail::ceil_div;
using checkpoint_detail::load_float;
using checkpoint_detail::load_u16;

namespace {

bool aligned(const void* pointer, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

// Copies bytes into storage aligned for every element type.
std::shared_ptr<const void> own_bytes(const void* bytes, std::uint64_t size) {
  auto words = std::make_shared<std::vector<std::uint64_t>>((size + 7) / 8);
  if (size > 0) std::memcpy(words->data(), bytes, size);
  return {words, words->data()};
}

}  // namespace

// Fills the private parts of a LinearWeight.
class LinearWeightBuilder {
 public:
  LinearWeightBuilder(abi::WeightFormat format, std::int64_t out, std::int64_t in, std::int64_t group_size) {
    weight_.view_.size = sizeof(abi::WeightView);
    weight_.view_.format = format;
    weight_.view_.out_features = out;
    weight_.view_.in_features = in;
    weight_.view_.group_size = group_size;
  }

  // Uses `bytes` in place when they are aligned to `alignment`, otherwise copies them.
  void values(const void* bytes, std::uint64_t size, std::int64_t row_bytes, std::size_t alignment,
              std::shared_ptr<const void> mapping) {
    weight_.mapped_ = mapping != nullptr && aligned(bytes, alignment);
    weight_.values_owner_ = weight_.mapped_ ? std::move(mapping) : own_bytes(bytes, size);
    weight_.view_.values = weight_.mapped_ ? bytes : weight_.values_owner_.get();
    weight_.view_.row_bytes = row_bytes;
  }

  void scales(std::vector<float> scales) {
    weight_.scales_ = std::make_shared<const std::vector<float>>(std::move(scales));
    weight_.view_.scales = weight_.scales_->data();
  }

  void zeros(std::vector<std::uint8_t> zeros) {
    weight_.zeros_ = std::make_shared<const std::vector<std::uint8_t>>(std::move(zeros));
    weight_.view_.zeros = weight_.zeros_->data();
  }

  LinearWeight take() { return std::move(weight_); }

 private:
  LinearWeight weight_;
};

std::uint64_t LinearWeight::bytes() const noexcept {
  std::uint64_t bytes = static_cast<std::uint64_t>(view_.out_features) * static_cast<std::uint64_t>(view_.row_bytes);
  if (scales_) bytes += scales_->size() * sizeof(float);
  if (zeros_) bytes += zeros_->size();
  return bytes;
}

std::uint64_t LinearWeight::owned_bytes() const noexcept {
  const auto values = static_cast<std::uint64_t>(view_.out_features) * static_cast<std::uint64_t>(view_.row_bytes);
  return mapped_ ? bytes() - values : bytes();
}

LinearWeight LinearWeight::from_parts(abi::WeightFormat format, std::int64_t out_features, std::int64_t in_features,
                                      std::int64_t group_size, const void* values, std::int64_t row_bytes,
                                      std::vector<float> scales, std::vector<std::uint8_t> zeros) {
  const bool dense = format == abi::WeightFormat::bf16;
  const std::int64_t needed = dense                               ? in_features * 2
                              : format == abi::WeightFormat::int4 ? ceil_div(in_features, 8) * 4
                                                                  : in_features;
  const std::int64_t groups = dense || group_size <= 0 ? 0 : ceil_div(in_features, group_size);
  const auto expected = static_cast<std::size_t>(out_features * groups);
  const bool group_wrong = dense ? group_size != 0 : group_size <= 0;
  if (format == abi::WeightFormat::none || out_features <= 0 || in_features <= 0 || group_wrong || row_bytes < needed ||
      scales.size() != expected || (!zeros.empty() && zeros.size() != expected)) {
    throw_error(
        ErrorKind::checkpoint,
        "weight [{}, {}] of format {}, group size {}: row of {} bytes (needs {}), {} scales and {} zeros (need {})",
        out_features, in_features, static_cast<unsigned>(format), group_size, row_bytes, needed, scales.size(),
        zeros.size(), expected);
  }
  LinearWeightBuilder builder(format, out_features, in_features, group_size);
  builder.values(values, static_cast<std::uint64_t>(out_features * row_bytes), row_bytes, 1, nullptr);
  if (!scales.empty()) builder.scales(std::move(scales));
  if (!zeros.empty()) builder.zeros(std::move(zeros));
  return builder.take();
}

namespace {

// BF16 stays in the file. F32 is taken only without loss: a silent rounding would change the model. F16 holds three
// more bits of mantissa and always less range, so it is rounded (at most 2^-9 of a value) and the rounding is reported.
LinearWeight load_dense(const Checkpoint& checkpoint, const std::string& module, std::int64_t out, std::int64_t in) {
  const Tensor& tensor =
      checkpoint.require(module + ".weight", {out, in}, {TensorType::bf16, TensorType::f16, TensorType::f32});
  LinearWeightBuilder builder(abi::WeightFormat::bf16, out, in, 0);
  if (tensor.type == TensorType::bf16) {
    builder.values(tensor.data, tensor.bytes, in * 2, 2, checkpoint.keep_alive());
    return builder.take();
  }
  std::vector<std::uint16_t> converted(static_cast<std::size_t>(out * in));
  std::int64_t rounded = 0;
  for (std::int64_t i = 0; i < out * in; ++i) {
    const float value = load_float(tensor, i);
    const std::uint16_t bits = float_to_bf16(value);
    if (bf16_to_float(bits) != value) {
      if (tensor.type == TensorType::f32 || !std::isfinite(value)) {
        throw_error(ErrorKind::checkpoint,
                    "{}: value {} at [{}, {}] is not exact in bf16; convert the checkpoint to bf16 first",
                    describe(tensor), value, i / in, i % in);
      }
      ++rounded;
    }
    converted[static_cast<std::size_t>(i)] = bits;
  }
  if (rounded > 0) {
    log(LogLevel::warn, "{}: {} of {} values were rounded to bf16, by at most 2^-9 of each", describe(tensor), rounded,
        out * in);
  }
  builder.values(converted.data(), converted.size() * 2, in * 2, 2, nullptr);
  return builder.take();
}

std::vector<float> load_scales(const Tensor& tensor) {
  std::vector<float> scales(static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1]));
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = load_float(tensor, static_cast<std::int64_t>(i));
    if (!std::isfinite(scales[i])) {
      const auto at = static_cast<std::int64_t>(i);
      throw_error(ErrorKind::checkpoint, "{}: scale [{}, {}] is {}", describe(tensor), at / tensor.shape[1],
                  at % tensor.shape[1], scales[i]);
    }
  }
  return scales;
}

// Packed along the output axis: zero of row n is element n % per_word of word [n / per_word, group].
std::vector<std::uint8_t> load_zeros(const Tensor& tensor, std::int64_t out, std::int64_t groups, int bits) {
  const std::int64_t per_word = 32 / bits;
  const std::uint32_t mask = (1u << bits) - 1u;
  std::vector<std::uint8_t> zeros(static_cast<std::size_t>(out * groups));
  for (std::int64_t row = 0; row < out; ++row) {
    for (std::int64_t group = 0; group < groups; ++group) {
      std::uint32_t word;
      std::memcpy(&word, tensor.data + 4 * (row / per_word * groups + group), sizeof word);
      const auto shift = static_cast<unsigned>(bits * (row % per_word));
      zeros[static_cast<std::size_t>(row * groups + group)] = static_cast<std::uint8_t>((word >> shift) & mask);
    }
  }
  return zeros;
}

void check_weight_shape(const Checkpoint& checkpoint, const std::string& module, std::int64_t out, std::int64_t in) {
  const Tensor& tensor = checkpoint.require(module + ".weight_shape", {2}, {TensorType::i64, TensorType::i32});
  std::int64_t stored[2];
  for (int axis = 0; axis < 2; ++axis) {
    if (tensor.type == TensorType::i64) {
      std::memcpy(&stored[axis], tensor.data + 8 * axis, 8);
    } else {
      std::int32_t narrow;
      std::memcpy(&narrow, tensor.data + 4 * axis, 4);
      stored[axis] = narrow;
    }
  }
  if (stored[0] != out || stored[1] != in) {
    throw_error(ErrorKind::checkpoint, "{}: says [{}, {}], config.json needs [{}, {}]", describe(tensor), stored[0],
                stored[1], out, in);
  }
}

void refuse(const Checkpoint& checkpoint, const std::string& name, const std::string& why) {
  if (const Tensor* tensor = checkpoint.find(name))
    throw_error(ErrorKind::checkpoint, "{}: {}", describe(*tensor), why);
}

LinearWeight load_packed(const Checkpoint& checkpoint, const QuantizationScheme& scheme, const std::string& module,
                         std::int64_t out, std::int64_t in) {
  const std::string says = fmt::format("config.json says that {} is {}", module, to_string(scheme));
  if (checkpoint.find(module + ".weight_packed") == nullptr) {
    refuse(checkpoint, module + ".weight", says + ", but the file holds it dense; list the module under 'ignore'");
  }
  refuse(checkpoint, module + ".weight_g_idx", "run-time group indices (activation order) are not supported");
  if (scheme.symmetric) refuse(checkpoint, module + ".weight_zero_point", says + ", but the file has zero points");
  const int bits = scheme.bits;
  const std::int64_t words = ceil_div(in, 32 / bits);
  const std::int64_t group_size = scheme.group_size < 0 ? in : scheme.group_size;
  const std::int64_t groups = ceil_div(in, group_size);
  const Tensor& packed = checkpoint.require(module + ".weight_packed", {out, words}, {TensorType::i32});
  const Tensor& scale =
      checkpoint.require(module + ".weight_scale", {out, groups}, {TensorType::bf16, TensorType::f16, TensorType::f32});
  check_weight_shape(checkpoint, module, out, in);

  LinearWeightBuilder builder(bits == 4 ? abi::WeightFormat::int4 : abi::WeightFormat::int8, out, in, group_size);
  builder.values(packed.data, packed.bytes, words * 4, bits == 4 ? 4 : 1, checkpoint.keep_alive());
  builder.scales(load_scales(scale));
  if (!scheme.symmetric) {
    const Tensor& zero =
        checkpoint.require(module + ".weight_zero_point", {ceil_div(out, 32 / bits), groups}, {TensorType::i32});
    builder.zeros(load_zeros(zero, out, groups, bits));
  }
  return builder.take();
}

}  // namespace

LinearWeight load_linear(const Checkpoint& checkpoint, const QuantizationConfig& config, const std::string& module,
                         std::int64_t out_features, std::int64_t in_features) {
  // Bounded so that no size below can overflow; the largest real matrices have fewer than 2^21 rows or columns.
  constexpr std::int64_t kLargest = std::int64_t{1} << 28;
  if (out_features <= 0 || in_features <= 0 || out_features > kLargest || in_features > kLargest) {
    throw_error(ErrorKind::checkpoint, "{}: '{}' cannot have the shape [{}, {}]", checkpoint.directory().string(),
                module, out_features, in_features);
  }
  if (config.gptq) {
    if (const GptqModule* packed = checkpoint_detail::gptq_module(checkpoint, config, module))
      return checkpoint_detail::load_gptq(checkpoint, *config.gptq, *packed, module, out_features, in_features);
  } else if (const QuantizationScheme* scheme = config.scheme_for(module)) {
    return load_packed(checkpoint, *scheme, module, out_features, in_features);
  }
  if (checkpoint.find(module + ".weight") == nullptr) {
    refuse(checkpoint, module + ".weight_packed",
           fmt::format("config.json says that {} is not quantized, but the file holds it packed", module));
    refuse(checkpoint, module + ".qweight",
           fmt::format("config.json says nothing of GPTQ, but the file holds {} packed so; keep the "
                       "quantization_config or quantize_config.json of the checkpoint beside it",
                       module));
  }
  return load_dense(checkpoint, module, out_features, in_features);
}

void dequantize_row(const abi::WeightView& weight, std::int64_t row, float* destination) noexcept {
  const auto* bytes = static_cast<const std::byte*>(weight.values) + row * weight.row_bytes;
  if (weight.format == abi::WeightFormat::bf16) {
    for (std::int64_t i = 0; i < weight.in_features; ++i) destination[i] = bf16_to_float(load_u16(bytes + 2 * i));
    return;
  }
  const bool int4 = weight.format == abi::WeightFormat::int4;
  const std::int64_t groups = ceil_div(weight.in_features, weight.group_size);
  for (std::int64_t i = 0; i < weight.in_features; ++i) {
    const std::int64_t group = row * groups + i / weight.group_size;
    // Byte i / 2 of a little-endian word holds elements i and i + 1.
    const int code = int4 ? (std::to_integer<int>(bytes[i / 2]) >> (4 * (i % 2))) & 15 : std::to_integer<int>(bytes[i]);
    const int zero = weight.zeros != nullptr ? weight.zeros[group] : int4 ? 8 : 128;
    destination[i] = static_cast<float>(code - zero) * weight.scales[group];
  }
}

}  // namespace facet
