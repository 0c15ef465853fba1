// GPTQ modules built by the definition of the layout, independent of the writer under test.
#pragma once

#include <optional>

#include "facet/checkpoint/float_bits.h"
#include "weight_helpers.h"

namespace facet::test {

struct GptqShape {
  std::int64_t out, in, group;  // group -1: a row
  bool symmetric;
  std::int64_t group_size() const { return group < 0 ? in : group; }
  std::int64_t groups() const { return (in + group_size() - 1) / group_size(); }
};

// What one module means, and its four tensors; a test may damage them before add().
struct GptqModuleParts {
  GptqShape shape;
  std::vector<std::uint32_t> codes, zeros;  // [in, out], [groups, out]
  std::vector<std::uint16_t> scales;        // F16 [groups, out]
  std::vector<std::int32_t> indices;        // [in]

  // (code - zero) * scale, exact in double.
  double value(std::int64_t n, std::int64_t i) const {
    const auto cell = static_cast<std::size_t>(indices[static_cast<std::size_t>(i)] * shape.out + n);
    return (static_cast<double>(codes[static_cast<std::size_t>(i * shape.out + n)]) - zeros[cell]) *
           static_cast<double>(f16_to_float(scales[cell]));
  }
};

// Natural order of groups. Zero codes are 1..15, so that "gptq" can store them.
inline GptqModuleParts random_gptq(const GptqShape& shape, Random& random) {
  GptqModuleParts parts{shape, {}, {}, {}, {}};
  for (std::int64_t i = 0; i < shape.in * shape.out; ++i) parts.codes.push_back(random() % 16);
  for (std::int64_t i = 0; i < shape.groups() * shape.out; ++i) {
    parts.zeros.push_back(shape.symmetric ? 8 : 1 + random() % 15);
    parts.scales.push_back(static_cast<std::uint16_t>(0x1000 + random() % 0x1800));  // positive, normal
  }
  for (std::int64_t i = 0; i < shape.in; ++i)
    parts.indices.push_back(static_cast<std::int32_t>(i / shape.group_size()));
  return parts;
}

// Words [ceil(rows / 8), columns] (along = true) or [rows, ceil(columns / 8)] of four-bit values [rows, columns].
inline std::vector<std::uint32_t> pack_nibbles(const std::vector<std::uint32_t>& values, std::int64_t rows,
                                               std::int64_t columns, bool along_rows) {
  const std::int64_t width = along_rows ? columns : (columns + 7) / 8;
  std::vector<std::uint32_t> words(static_cast<std::size_t>((along_rows ? (rows + 7) / 8 : rows) * width));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t word = along_rows ? r / 8 * width + c : r * width + c / 8;
      words[static_cast<std::size_t>(word)] |= values[static_cast<std::size_t>(r * columns + c)]
                                               << (4 * ((along_rows ? r : c) % 8));
    }
  }
  return words;
}

inline FileBuilder& add_gptq(FileBuilder& builder, const std::string& module, const GptqModuleParts& parts,
                             GptqZeros convention, bool with_indices = true) {
  const GptqShape& shape = parts.shape;
  std::vector<std::uint32_t> zeros = parts.zeros;
  for (std::uint32_t& zero : zeros) zero -= convention == GptqZeros::minus_one ? 1 : 0;
  builder
      .add(module + ".qweight", "I32", {(shape.in + 7) / 8, shape.out},
           pack_nibbles(parts.codes, shape.in, shape.out, true))
      .add(module + ".qzeros", "I32", {shape.groups(), (shape.out + 7) / 8},
           pack_nibbles(zeros, shape.groups(), shape.out, false))
      .add(module + ".scales", "F16", {shape.groups(), shape.out}, parts.scales);
  if (with_indices) builder.add(module + ".g_idx", "I32", {shape.in}, parts.indices);
  return builder;
}

// config.json with the settings of a GPTQ checkpoint; `more` is JSON that follows a comma.
inline std::string gptq_config(std::int64_t group, bool symmetric, const std::string& more = "") {
  return fmt::format(R"({{"quantization_config":{{"quant_method":"gptq","bits":4,"group_size":{},"sym":{}{}{}}}}})",
                     group, symmetric, more.empty() ? "" : ",", more);
}

// A folder with one weight file and its config.
struct GptqFolder : Folder {
  GptqFolder(const FileBuilder& builder, const std::string& config) : Folder(builder) {
    write_file(folder / "config.json", config);
  }
  LinearWeight load(const std::string& module, std::int64_t out, std::int64_t in) const {
    const Checkpoint checkpoint = open();
    return load_linear(checkpoint, read_quantization(checkpoint), module, out, in);
  }
};

inline void expect_parts(const LinearWeight& weight, const GptqModuleParts& parts) {
  for (std::int64_t n = 0; n < parts.shape.out; ++n) {
    const std::vector<float> values = row_of(weight, n);
    // A product of a 5-bit and an 11-bit integer mantissa is exact in float.
    for (std::int64_t i = 0; i < parts.shape.in; ++i)
      ASSERT_EQ(static_cast<double>(values[static_cast<std::size_t>(i)]), parts.value(n, i)) << n << ", " << i;
  }
}

}  // namespace facet::test
