#include "random_weights.h"

#include <cmath>
#include <cstring>

namespace facet::test {

double bf16_value(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return static_cast<double>(value);
}

std::uint16_t bf16_bits(double value) {
  // Scaled to 8 significant bits; nearbyint rounds to even.
  if (value == 0.0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, 8 - exponent)), exponent - 8);
  const float narrow = static_cast<float>(rounded);
  std::uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

RandomPart::RandomPart(const WeightShape& shape, std::mt19937_64& random) : shape_(shape) {
  const std::int64_t inputs = shape.in_features;
  std::normal_distribution<double> normal(0.0, 1.0);
  if (shape.format == abi::WeightFormat::bf16) {
    offset_ = 2;
    row_bytes_ = 2 * inputs;
    values_.resize(static_cast<std::size_t>(offset_ + shape.out_features * row_bytes_));
    for (std::size_t i = static_cast<std::size_t>(offset_); i < values_.size(); i += 2) {
      const std::uint16_t bits = bf16_bits(0.05 * normal(random));
      std::memcpy(values_.data() + i, &bits, sizeof bits);
    }
    return;
  }
  const bool int4 = shape.format == abi::WeightFormat::int4;
  row_bytes_ = int4 ? (inputs + 7) / 8 * 4 : inputs;
  groups_ = (inputs + shape.group_size - 1) / shape.group_size;
  values_.resize(static_cast<std::size_t>(shape.out_features * row_bytes_));
  for (std::uint8_t& value : values_) value = static_cast<std::uint8_t>(random());
  scales_.resize(static_cast<std::size_t>(shape.out_features * groups_));
  for (float& scale : scales_)
    scale = static_cast<float>(bf16_value(bf16_bits((int4 ? 0.02 : 0.001) * std::exp(0.3 * normal(random)))));
  if (!shape.symmetric) {
    zeros_.resize(scales_.size());
    for (std::uint8_t& zero : zeros_) zero = static_cast<std::uint8_t>(random() & (int4 ? 15u : 255u));
  }
}

abi::WeightView RandomPart::view() const {
  abi::WeightView view{};
  view.size = sizeof view;
  view.format = shape_.format;
  view.out_features = shape_.out_features;
  view.in_features = shape_.in_features;
  view.group_size = shape_.format == abi::WeightFormat::bf16 ? 0 : shape_.group_size;
  view.values = values_.data() + offset_;
  view.row_bytes = row_bytes_;
  view.scales = scales_.empty() ? nullptr : scales_.data();
  view.zeros = zeros_.empty() ? nullptr : zeros_.data();
  return view;
}

int RandomPart::code(std::int64_t row, std::int64_t column) const {
  const std::uint8_t* bytes = values_.data() + row * row_bytes_;
  if (shape_.format == abi::WeightFormat::int8) return bytes[column];
  std::uint32_t word;
  std::memcpy(&word, bytes + column / 8 * 4, sizeof word);
  return static_cast<int>((word >> (4 * (column % 8))) & 15u);
}

void RandomPart::set_code(std::int64_t row, std::int64_t column, int code) {
  std::uint8_t* bytes = values_.data() + row * row_bytes_;
  if (shape_.format == abi::WeightFormat::int8) {
    bytes[column] = static_cast<std::uint8_t>(code);
    return;
  }
  std::uint32_t word;
  std::memcpy(&word, bytes + column / 8 * 4, sizeof word);
  const int shift = static_cast<int>(4 * (column % 8));
  word = (word & ~(15u << shift)) | (static_cast<std::uint32_t>(code) << shift);
  std::memcpy(bytes + column / 8 * 4, &word, sizeof word);
}

std::int64_t RandomPart::group(std::int64_t row, std::int64_t column) const {
  return row * groups_ + column / shape_.group_size;
}

double RandomPart::weight(std::int64_t row, std::int64_t column) const {
  if (shape_.format == abi::WeightFormat::bf16) {
    std::uint16_t bits;
    std::memcpy(&bits, values_.data() + offset_ + row * row_bytes_ + 2 * column, sizeof bits);
    return bf16_value(bits);
  }
  const auto at = static_cast<std::size_t>(group(row, column));
  const int mean = shape_.format == abi::WeightFormat::int4 ? 8 : 128;
  return (code(row, column) - (zeros_.empty() ? mean : zeros_[at])) * static_cast<double>(scales_[at]);
}

double RandomPart::magnitude(std::int64_t row, std::int64_t column) const {
  if (shape_.format == abi::WeightFormat::bf16) return std::abs(weight(row, column));
  const auto at = static_cast<std::size_t>(group(row, column));
  const int mean = shape_.format == abi::WeightFormat::int4 ? 8 : 128;
  const int zero = zeros_.empty() ? mean : zeros_[at];
  return (std::abs(code(row, column) - mean) + std::abs(mean - zero)) * static_cast<double>(scales_[at]);
}

std::vector<RandomPart> random_parts(const WeightShape& shape, int count, std::mt19937_64& random) {
  std::vector<RandomPart> parts;
  std::int64_t left = shape.out_features;
  for (int i = 0; i < count && left > 0; ++i) {
    WeightShape part = shape;
    const bool last = i + 1 == count;
    part.out_features = last ? left : 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(left));
    parts.emplace_back(part, random);
    left -= part.out_features;
  }
  return parts;
}

}  // namespace facet::test
