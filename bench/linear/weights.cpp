#include "weights.h"

namespace facet::bench {

namespace {

// splitmix64
std::uint64_t next(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15u;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

SeededWeights::SeededWeights(Shape shape, abi::WeightFormat format, std::int64_t group_size, std::uint64_t seed)
    : shape_(shape), format_(format), group_size_(group_size) {
  const std::int64_t bits = format == abi::WeightFormat::bf16 ? 16 : format == abi::WeightFormat::int8 ? 8 : 4;
  row_bytes_ = (shape.in_features * bits / 8 + 3) / 4 * 4;
  values_.resize(static_cast<std::size_t>((shape.out_features * row_bytes_ + 7) / 8));
  // Sign and three mantissa bits random, exponent that of 0.015: always finite.
  for (std::uint64_t& value : values_) {
    value = next(seed);
    if (format == abi::WeightFormat::bf16) value = (value & 0x8070807080708070u) | 0x3c003c003c003c00u;
  }
  if (format == abi::WeightFormat::bf16) return;
  const std::int64_t groups = (shape.in_features + group_size - 1) / group_size;
  scales_.resize(static_cast<std::size_t>(shape.out_features * groups));
  for (float& scale : scales_) scale = 0.0078125f * (1.0f + static_cast<float>(next(seed) % 128) / 128.0f);
}

abi::WeightView SeededWeights::view() const {
  abi::WeightView view{};
  view.size = sizeof view;
  view.format = format_;
  view.out_features = shape_.out_features;
  view.in_features = shape_.in_features;
  view.group_size = format_ == abi::WeightFormat::bf16 ? 0 : group_size_;
  view.values = values_.data();
  view.row_bytes = row_bytes_;
  view.scales = scales_.empty() ? nullptr : scales_.data();
  return view;
}

}  // namespace facet::bench
