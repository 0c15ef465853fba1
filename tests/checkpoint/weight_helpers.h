// What tests of loaded weights share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "facet/checkpoint/linear_weight.h"
#include "file_builder.h"

namespace facet::test {

// std::mt19937 counts in a wider type than it fills.
struct Random {
  std::mt19937 engine;
  std::uint32_t operator()() { return static_cast<std::uint32_t>(engine()); }
};

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline std::vector<float> row_of(const LinearWeight& weight, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(weight.in_features()), kNaN);
  dequantize_row(weight.view(), row, values.data());
  return values;
}

struct Folder {
  explicit Folder(const FileBuilder& builder) { write_file(folder / "model.safetensors", builder.build()); }
  Checkpoint open() const { return Checkpoint::open(folder.path()); }
  TempFolder folder;
};

// Values [out, in] that a committed file holds for a module as F32, compared row by row, bit for bit.
inline void expect_values(const LinearWeight& weight, const Tensor& expected) {
  ASSERT_EQ(expected.type, TensorType::f32);
  const auto width = static_cast<std::size_t>(expected.shape[1]);
  for (std::int64_t row = 0; row < expected.shape[0]; ++row) {
    const std::vector<float> values = row_of(weight, row);
    ASSERT_EQ(values.size(), width);
    const std::byte* reference = expected.data + row * expected.shape[1] * 4;
    for (std::size_t i = 0; i < width; ++i) {
      float value;
      std::memcpy(&value, reference + 4 * i, 4);
      ASSERT_EQ(std::memcmp(&values[i], &value, 4), 0)
          << "row " << row << " input " << i << ": " << values[i] << " is not " << value;
    }
  }
}

}  // namespace facet::test
