#include "quant_gptq/cuda/rows32/pack.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/checks.h"
#include "common/decode.h"
#include "facet/sdk/numeric.h"
#include "quant_gptq/cuda/device/check.h"

namespace facet::linear {

namespace {

constexpr std::uint64_t kSlabBytes = 64 << 20;  // host memory of one step of packing

// Codes of 16 inputs of a row from input `column` on, as bytes; 0 past in_features and for a missing row.
struct Codes16 {
  std::uint8_t code[16];
};

Codes16 read_codes(const abi::WeightView* part, std::int64_t row, std::int64_t column) {
  Codes16 codes{};
  if (part == nullptr) return codes;
  const std::int64_t known = std::min<std::int64_t>(16, part->in_features - column);
  if (known <= 0) return codes;
  const auto* bytes = static_cast<const std::uint8_t*>(part->values) + row * part->row_bytes;
  if (part->format == abi::WeightFormat::int8) {
    std::memcpy(codes.code, bytes + column, static_cast<std::size_t>(known));
    return codes;
  }
  for (std::int64_t i = 0; i < (known + 1) / 2; ++i) {
    const std::uint8_t pair = bytes[column / 2 + i];
    codes.code[2 * i] = pair & 15;
    codes.code[2 * i + 1] = pair >> 4;
  }
  if (known % 2 != 0) codes.code[known] = 0;
  return codes;
}

// The word of lane part t: inputs 2t, 2t+8, 2t+1, 2t+9.
std::uint32_t word_of(const Codes16& codes, int t) {
  const std::uint8_t* at = codes.code + 2 * t;
  return static_cast<std::uint32_t>(at[0]) | static_cast<std::uint32_t>(at[8]) << 8 |
         static_cast<std::uint32_t>(at[1]) << 16 | static_cast<std::uint32_t>(at[9]) << 24;
}

void pack_codes(const Rows32& shape, const PartRow (&rows)[16], std::int64_t chunk, std::uint8_t* tile) {
  for (int s = 0; s < 8; ++s) {
    const std::int64_t column = chunk * kChunkInputs + 16 * s;
    for (int g = 0; g < 8; ++g) {
      const Codes16 low = read_codes(rows[g].part, rows[g].row, column);
      const Codes16 high = read_codes(rows[g + 8].part, rows[g + 8].row, column);
      for (int t = 0; t < 4; ++t) {
        const int lane = 4 * g + t;
        if (shape.bits == 4) {
          const std::uint32_t word = word_of(low, t) | word_of(high, t) << 4;
          std::memcpy(tile + 4 * (((s / 4) * 32 + lane) * 4 + s % 4), &word, sizeof word);
        } else {
          const std::uint32_t words[2] = {word_of(low, t), word_of(high, t)};
          std::memcpy(tile + 4 * (((s / 2) * 32 + lane) * 4 + 2 * (s % 2)), words, sizeof words);
        }
      }
    }
  }
}

void pack_scales(const Rows32& shape, const PartRow& source, std::int64_t chunk, int slot, float factor,
                 std::uint8_t* chunk_data) {
  if (source.part == nullptr) return;
  const abi::WeightView& part = *source.part;
  const std::int64_t groups = sdk::ceil_div(part.in_features, part.group_size);
  std::uint8_t* scales = chunk_data + shape.code_bytes;
  std::uint8_t* zeros = scales + shape.segments * kUnitRows * 2;
  const int mean = shape.bits == 4 ? 8 : 128;
  for (int segment = 0; segment < shape.segments; ++segment) {
    const std::int64_t column = chunk * kChunkInputs + segment * (kChunkInputs / shape.segments);
    if (column >= part.in_features) return;
    const std::int64_t group = source.row * groups + column / part.group_size;
    const __half scale = __float2half_rn(part.scales[group] / factor);
    std::memcpy(scales + (segment * kUnitRows + slot) * 2, &scale, sizeof scale);
    if (shape.asymmetric != 0)
      zeros[segment * kUnitRows + slot] = part.zeros != nullptr ? part.zeros[group] : static_cast<std::uint8_t>(mean);
  }
}

// Row of W that tile row `row` (0..31) of a unit holds, out_features or more when it holds none.
std::int64_t unit_row(const Rows32& shape, std::int64_t unit, int row) {
  if (shape.gate == 0) return unit * kUnitRows + row;
  const std::int64_t half = shape.out_features / 2;
  const std::int64_t inside = unit * 16 + row % 16;
  if (inside >= half) return shape.out_features;
  return row < 16 ? inside : half + inside;
}

}  // namespace

Rows32 rows32_shape(const abi::LinearProblem& problem) {
  Rows32 shape{};
  shape.out_features = problem.out_features;
  shape.in_features = problem.in_features;
  // The layout of a matrix must not depend on whether the gate is fused, so the role alone decides.
  shape.gate = problem.role == abi::LinearRole::gate_up && problem.out_features % 2 == 0 ? 1 : 0;
  shape.units = static_cast<int>(shape.gate != 0 ? sdk::ceil_div(problem.out_features / 2, 16)
                                                 : sdk::ceil_div(problem.out_features, kUnitRows));
  shape.chunks = static_cast<int>(sdk::ceil_div(problem.in_features, kChunkInputs));
  const std::int64_t group = problem.group_size;
  const bool whole = group >= problem.in_features;
  shape.segments = whole || group % 128 == 0 ? 1 : group % 64 == 0 ? 2 : 4;
  shape.bits = problem.weight == abi::WeightFormat::int4 ? 4 : 8;
  shape.asymmetric = problem.symmetric == 0 ? 1 : 0;
  shape.code_bytes = kUnitRows * kChunkInputs * shape.bits / 8;
  shape.chunk_bytes = shape.code_bytes + shape.segments * kUnitRows * (2 + shape.asymmetric);
  return shape;
}

std::string rows32_sizes(const Rows32& shape, abi::LinearPlan& sizes) {
  sizes.packed_bytes = kHeaderBytes + static_cast<std::uint64_t>(shape.units) *
                                          static_cast<std::uint64_t>(shape.chunks) *
                                          static_cast<std::uint64_t>(shape.chunk_bytes);
  sizes.packed_alignment = 256;
  return sdk::concat("facet.w", shape.bits, ".rows32.s", kChunkInputs / shape.segments,
                     shape.asymmetric != 0 ? ".asym" : ".sym", shape.gate != 0 ? ".gate" : "");
}

float rows32_factor(std::span<const abi::WeightView> parts) {
  float largest = 0.0f;
  for (const abi::WeightView& part : parts) {
    const std::int64_t count = part.out_features * sdk::ceil_div(part.in_features, part.group_size);
    for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(part.scales[i]));
  }
  if (!(largest > 0.0f) || !std::isfinite(largest)) return 1.0f;
  int exponent = 0;
  std::frexp(largest, &exponent);  // largest = f * 2^exponent with f in [0.5, 1)
  return std::ldexp(1.0f, std::max(exponent - 15, -120));
}

void rows32_pack_unit(const Rows32& shape, std::span<const abi::WeightView> parts, std::int64_t unit, float factor,
                      std::uint8_t* target) {
  PartRow tiles[2][16];
  for (int row = 0; row < kUnitRows; ++row) {
    const std::int64_t source = unit_row(shape, unit, row);
    tiles[row / 16][row % 16] = source < shape.out_features ? find_row(parts, source) : PartRow{nullptr, 0};
  }
  for (std::int64_t chunk = 0; chunk < shape.chunks; ++chunk) {
    std::uint8_t* data = target + chunk * shape.chunk_bytes;
    std::memset(data + shape.code_bytes, 0, static_cast<std::size_t>(shape.chunk_bytes - shape.code_bytes));
    for (int tile = 0; tile < 2; ++tile) {
      pack_codes(shape, tiles[tile], chunk, data + tile * shape.code_bytes / 2);
      // Scales stand as [g][A g, A g+8, B g, B g+8].
      for (int row = 0; row < 16; ++row)
        pack_scales(shape, tiles[tile][row], chunk, (row % 8) * 4 + tile * 2 + row / 8, factor, data);
    }
  }
}

void rows32_pack(const abi::LinearProblem& problem, const Rows32& shape, std::span<const abi::WeightView> parts,
                 abi::Memory packed, sdk::Host host) {
  check_parts(problem, parts);
  abi::LinearPlan sizes{};
  rows32_sizes(shape, sizes);
  if (packed.bytes < sizes.packed_bytes)
    sdk::fail(abi::Status::invalid_argument, "packed memory of ", packed.bytes, " bytes, the plan needs ",
              sizes.packed_bytes);
  const float factor = rows32_factor(parts);
  std::uint8_t header[kHeaderBytes] = {};
  std::memcpy(header, &factor, sizeof factor);
  auto* target = static_cast<std::uint8_t*>(packed.data);
  check_cuda(cudaMemcpy(target, header, sizeof header, cudaMemcpyHostToDevice), "copy of a packed header");
  const std::int64_t unit_bytes = std::int64_t{shape.chunks} * shape.chunk_bytes;
  const std::int64_t units = shape.units;
  const std::int64_t slab =
      std::min(units, std::max<std::int64_t>(1, static_cast<std::int64_t>(kSlabBytes) / unit_bytes));
  std::vector<std::uint8_t> staging(static_cast<std::size_t>(slab * unit_bytes));
  for (std::int64_t first = 0; first < units; first += slab) {
    const std::int64_t count = std::min(slab, units - first);
    host.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
      for (std::int64_t unit = begin; unit < end; ++unit)
        rows32_pack_unit(shape, parts, first + unit, factor, staging.data() + unit * unit_bytes);
    });
    check_cuda(cudaMemcpy(target + kHeaderBytes + first * unit_bytes, staging.data(),
                          static_cast<std::size_t>(count * unit_bytes), cudaMemcpyHostToDevice),
               "copy of packed weights");
  }
  // A copy from pageable memory returns before its last piece has arrived, and runs are on other streams.
  check_cuda(cudaStreamSynchronize(nullptr), "copy of packed weights");
}

}  // namespace facet::linear
