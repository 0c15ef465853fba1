#include "common/decode.h"

#include <algorithm>
#include <cstring>

#include "facet/sdk/numeric.h"

namespace facet::linear {

namespace {

const std::uint8_t* row_bytes(const abi::WeightView& view, std::int64_t row) {
  return static_cast<const std::uint8_t*>(view.values) + row * view.row_bytes;
}

}  // namespace

PartRow find_row(std::span<const abi::WeightView> parts, std::int64_t index) {
  const abi::WeightView* part = parts.data();
  while (index >= part->out_features) {
    index -= part->out_features;
    ++part;
  }
  return {part, index};
}

std::uint8_t code_at(const abi::WeightView& view, std::int64_t row, std::int64_t column) {
  const std::uint8_t* bytes = row_bytes(view, row);
  if (view.format == abi::WeightFormat::int8) return bytes[column];
  // The words are little endian, so nibble i of a row is in byte i / 2, the low one first.
  return static_cast<std::uint8_t>((bytes[column / 2] >> (4 * (column % 2))) & 15);
}

void decode_row(const abi::WeightView& view, std::int64_t row, float* out) {
  const std::int64_t inputs = view.in_features;
  if (view.format == abi::WeightFormat::bf16) {
    const std::uint8_t* bytes = row_bytes(view, row);
    for (std::int64_t column = 0; column < inputs; ++column) {
      std::uint16_t value;
      std::memcpy(&value, bytes + 2 * column, sizeof value);
      out[column] = sdk::bf16_to_float(value);
    }
    return;
  }
  const std::int64_t groups = sdk::ceil_div(inputs, view.group_size);
  const int mean = view.format == abi::WeightFormat::int4 ? 8 : 128;
  for (std::int64_t group = 0; group < groups; ++group) {
    const float scale = view.scales[row * groups + group];
    const int zero = view.zeros != nullptr ? view.zeros[row * groups + group] : mean;
    const std::int64_t end = std::min(inputs, (group + 1) * view.group_size);
    for (std::int64_t column = group * view.group_size; column < end; ++column)
      out[column] = static_cast<float>(code_at(view, row, column) - zero) * scale;
  }
}

}  // namespace facet::linear
