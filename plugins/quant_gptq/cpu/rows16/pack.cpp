#include "rows16/pack.h"

#include <algorithm>
#include <cstring>

#include "common/checks.h"
#include "common/decode.h"
#include "facet/sdk/numeric.h"

namespace facet::linear {

namespace {

constexpr std::int64_t kLine = 64;  // bytes of a vector and of 16 float scales

// Nibbles n0..n3 (low first) to the low nibbles of four bytes.
std::uint32_t spread(std::uint32_t nibbles) {
  nibbles = (nibbles | (nibbles << 8)) & 0x00ff00ffu;
  return (nibbles | (nibbles << 4)) & 0x0f0f0f0fu;
}

// The lane of 8 inputs from `column` on, codes past in_features replaced by `zero`.
std::uint32_t lane4(const abi::WeightView& view, std::int64_t row, std::int64_t column, std::uint32_t zero) {
  const std::uint32_t zeros = zero * 0x11111111u;
  std::uint32_t word = zeros;
  if (column < view.in_features) {
    std::memcpy(&word, static_cast<const std::uint8_t*>(view.values) + row * view.row_bytes + column / 2, sizeof word);
    const std::int64_t left = view.in_features - column;
    if (left < 8) {
      const std::uint32_t known = (1u << (4 * left)) - 1u;
      word = (word & known) | (zeros & ~known);
    }
  }
  return spread(word & 0xffffu) | (spread(word >> 16) << 4);
}

// The lane of 4 inputs from `column` on.
std::uint32_t lane8(const abi::WeightView& view, std::int64_t row, std::int64_t column, std::uint32_t zero) {
  std::uint8_t bytes[4];
  std::fill_n(bytes, 4, static_cast<std::uint8_t>(zero));
  const std::int64_t left = std::min<std::int64_t>(4, view.in_features - column);
  if (left > 0)
    std::memcpy(bytes, static_cast<const std::uint8_t*>(view.values) + row * view.row_bytes + column,
                static_cast<std::size_t>(left));
  std::uint32_t lane;
  std::memcpy(&lane, bytes, sizeof lane);
  return lane;
}

// One row of a block; source.part is null for a row past out_features.
void pack_row(const Rows16& shape, PartRow source, std::int64_t lane, std::uint8_t* block) {
  const std::int64_t step = shape.bits == 4 ? 8 : 4;
  for (std::int64_t segment = 0; segment < shape.segments; ++segment) {
    float scale = 0.0f;
    std::uint32_t zero = static_cast<std::uint32_t>(shape.mean);
    const abi::WeightView* part = source.part;
    if (part != nullptr) {
      const std::int64_t groups = sdk::ceil_div(part->in_features, part->group_size);
      const std::int64_t group = source.row * groups + segment * shape.segment / part->group_size;
      scale = part->scales[group];
      if (part->zeros != nullptr) zero = part->zeros[group];
    }
    std::uint8_t* target = block + segment * shape.segment_bytes;
    std::memcpy(target + shape.segment_bytes - kLine + 4 * lane, &scale, sizeof scale);
    if (shape.zeros_offset != 0)
      block[shape.zeros_offset + segment * kBlockRows + lane] = static_cast<std::uint8_t>(zero);
    for (std::int64_t vector = 0; vector < shape.segment / step; ++vector) {
      const std::int64_t column = segment * shape.segment + vector * step;
      std::uint32_t packed = zero * (shape.bits == 4 ? 0x11111111u : 0x01010101u);
      if (part != nullptr)
        packed = shape.bits == 4 ? lane4(*part, source.row, column, zero) : lane8(*part, source.row, column, zero);
      std::memcpy(target + vector * kLine + 4 * lane, &packed, sizeof packed);
    }
  }
}

}  // namespace

Rows16 rows16_shape(const abi::LinearProblem& problem) {
  Rows16 shape{};
  const std::int64_t group = problem.group_size;
  shape.out_features = problem.out_features;
  shape.in_features = problem.in_features;
  if (group >= problem.in_features) {
    shape.segment = problem.in_features <= 32 ? 32 : problem.in_features <= 64 ? 64 : 128;
  } else {
    shape.segment = group % 128 == 0 ? 128 : group % 64 == 0 ? 64 : 32;
  }
  shape.segments = sdk::ceil_div(problem.in_features, shape.segment);
  shape.bits = problem.weight == abi::WeightFormat::int4 ? 4 : 8;
  shape.mean = shape.bits == 4 ? 8 : 128;
  shape.segment_bytes = kBlockRows * shape.segment * shape.bits / 8 + kLine;
  shape.block_bytes = shape.segments * shape.segment_bytes;
  if (problem.symmetric == 0) {
    shape.zeros_offset = shape.block_bytes;
    shape.block_bytes += sdk::round_up(shape.segments * kBlockRows, kLine);
  }
  return shape;
}

std::int64_t rows16_blocks(const Rows16& shape) {
  return sdk::ceil_div(shape.out_features, kBlockRows);
}

std::int64_t rows16_padded_inputs(const Rows16& shape) {
  return shape.segments * shape.segment;
}

std::int64_t rows16_grain(const Rows16& shape, std::int64_t rows) {
  return sdk::round_up(loop_grain(shape.block_bytes, rows), 4);
}

std::string rows16_sizes(const Rows16& shape, abi::LinearPlan& sizes) {
  sizes.packed_bytes = static_cast<std::uint64_t>(rows16_blocks(shape) * shape.block_bytes);
  sizes.packed_alignment = kLine;
  return sdk::concat("facet.w", shape.bits, ".rows16.s", shape.segment, shape.zeros_offset != 0 ? ".asym" : ".sym");
}

void rows16_pack(const abi::LinearProblem& problem, const Rows16& shape, std::span<const abi::WeightView> parts,
                 abi::Memory packed, sdk::Host host) {
  check_parts(problem, parts);
  const auto needed = static_cast<std::uint64_t>(rows16_blocks(shape) * shape.block_bytes);
  if (packed.bytes < needed)
    sdk::fail(abi::Status::invalid_argument, "packed memory of ", packed.bytes, " bytes, the plan needs ", needed);
  auto* data = static_cast<std::uint8_t*>(packed.data);
  host.parallel_for(rows16_blocks(shape), 1, [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
    for (std::int64_t block = begin; block < end; ++block) {
      std::uint8_t* target = data + block * shape.block_bytes;
      // Bytes between the last zero code and the next line.
      if (shape.zeros_offset != 0) {
        const std::int64_t used = shape.zeros_offset + shape.segments * kBlockRows;
        std::memset(target + used, 0, static_cast<std::size_t>(shape.block_bytes - used));
      }
      for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
        const std::int64_t row = block * kBlockRows + lane;
        pack_row(shape, row < shape.out_features ? find_row(parts, row) : PartRow{nullptr, 0}, lane, target);
      }
    }
  });
}

}  // namespace facet::linear
