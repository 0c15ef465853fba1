// Cases 25 and 26: awkward groups, and matrices whose width is no multiple of the group.
#include "facet/quantizer/rtn.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

namespace facet::quantizer {
namespace {

using testing::HasSubstr;

std::vector<float> gaussian(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.04f);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

Matrix matrix_of(const std::vector<float>& values, std::int64_t rows) {
  return {"layer.weight", Matrix::Type::f32, values.data(), rows, static_cast<std::int64_t>(values.size()) / rows};
}

bool is_bf16(float value) {
  return (std::bit_cast<std::uint32_t>(value) & 0xffffu) == 0;
}

std::vector<RtnOptions> variants() {
  std::vector<RtnOptions> all;
  for (const int bits : {4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const bool search : {false, true}) {
        all.push_back({bits, symmetric, 128, SymmetricRange::half, search});
        all.push_back({bits, symmetric, 128, SymmetricRange::full, search});
      }
    }
  }
  return all;
}

std::string name_of(const RtnOptions& o) {
  return std::to_string(o.bits) + (o.symmetric ? " symmetric g" : " asymmetric g") + std::to_string(o.group_size) +
         (o.range == SymmetricRange::half ? " half" : " full") + (o.search_scales ? " searched" : "");
}

TEST(Rtn, AwkwardGroups) {
  constexpr std::int64_t kColumns = 128;
  for (const RtnOptions& options : variants()) {
    SCOPED_TRACE(name_of(options));
    const auto quantize = [&](const std::vector<float>& values) {
      const Quantized result = quantize_rtn(matrix_of(values, 1), options);
      EXPECT_TRUE(std::isfinite(result.scales[0]) && result.scales[0] >= 0 && is_bf16(result.scales[0]));
      return result;
    };
    const auto at = [&](const Quantized& q, std::int64_t i) { return dequantize(q, options, kColumns, 0, i); };

    const Quantized zeros = quantize(std::vector<float>(kColumns, 0.0f));
    const Quantized tiny = quantize(std::vector<float>(kColumns, 1e-30f));
    std::vector<float> denormal(kColumns, 0.0f);
    denormal[5] = 1e-40f;
    const Quantized lonely = quantize(denormal);
    const Quantized largest = quantize(std::vector<float>(kColumns, 3e38f));
    for (std::int64_t i = 0; i < kColumns; ++i) {
      EXPECT_EQ(at(zeros, i), 0.0f);
      EXPECT_LE(std::abs(at(tiny, i)), 1e-7f);
      EXPECT_LE(std::abs(at(lonely, i)), 1e-7f);
      EXPECT_TRUE(std::isfinite(at(largest, i)));
    }
    for (const float constant : {9.0f, -9.0f}) {
      const Quantized result = quantize(std::vector<float>(kColumns, constant));
      EXPECT_NEAR(at(result, 0), constant, result.scales[0] / 2 * 1.001f);
      EXPECT_EQ(at(result, 0), at(result, kColumns - 1));
    }
  }
}

TEST(Rtn, NotFiniteIsRefusedByName) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(3 * 40, 1.0f);
    values[2 * 40 + 7] = bad;
    values[2 * 40 + 9] = bad;
    try {
      quantize_rtn(matrix_of(values, 3), {});
      ADD_FAILURE() << "accepted " << bad;
    } catch (const QuantizeError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'layer.weight'"));
      EXPECT_THAT(error.what(), HasSubstr("[2, 7]"));
    }
  }
}

TEST(Rtn, OptionsAreChecked) {
  const std::vector<float> values(8, 1.0f);
  EXPECT_THROW(quantize_rtn(matrix_of(values, 1), {5}), QuantizeError);
  EXPECT_THROW(quantize_rtn(matrix_of(values, 1), {4, true, 0}), QuantizeError);
  EXPECT_THROW(quantize_rtn({"x", Matrix::Type::f32, nullptr, 1, 8}, {}), QuantizeError);
  EXPECT_THROW(quantize_rtn({"x", Matrix::Type::f32, values.data(), 0, 8}, {}), QuantizeError);
}

// An independent reading of the rules, one element at a time in double.
void expect_nearest(const std::vector<float>& values, std::int64_t rows, const RtnOptions& options) {
  const auto columns = static_cast<std::int64_t>(values.size()) / rows;
  const Quantized result = quantize_rtn(matrix_of(values, rows), options);
  const std::int64_t group = options.group_size == -1 ? columns : options.group_size;
  const int levels = options.bits == 4 ? 15 : 255;
  ASSERT_EQ(result.groups, (columns + group - 1) / group);
  double total = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t k = 0; k < columns; ++k) {
      const auto cell = static_cast<std::size_t>(row * result.groups + k / group);
      const double scale = result.scales[cell];
      const double zero = options.symmetric ? (levels + 1) / 2 : result.zeros[cell];
      const double w = values[static_cast<std::size_t>(row * columns + k)];
      const double value = dequantize(result, options, columns, row, k);
      const double nearest =
          (std::clamp(std::nearbyint(w / scale) + zero, 0.0, static_cast<double>(levels)) - zero) * scale;
      // Where w / scale is a tie up to float rounding both neighbours are right.
      EXPECT_NEAR(std::abs(w - value), std::abs(w - nearest), scale * 1e-5) << "row " << row << " column " << k;
      total += (w - value) * (w - value);
    }
    double magnitude = 0, low = 0, high = 0;
    for (std::int64_t k = 0; k < std::min(group, columns); ++k) {
      const double w = values[static_cast<std::size_t>(row * columns + k)];
      magnitude = std::max(magnitude, std::abs(w));
      low = std::min(low, w);
      high = std::max(high, w);
    }
    const double plain = options.symmetric
                             ? magnitude / (options.range == SymmetricRange::half ? levels / 2.0 : (levels - 1) / 2.0)
                             : (high - low) / levels;
    if (!options.search_scales) {
      EXPECT_NEAR(result.scales[static_cast<std::size_t>(row * result.groups)], plain, plain / 256);
    }
  }
  EXPECT_NEAR(result.squared_error, total, total * 1e-6 + 1e-30);
}

TEST(Rtn, CodesAreNearestForEveryShape) {
  unsigned seed = 1;
  for (const std::int64_t columns : {8, 64, 120, 192, 1025}) {
    for (const std::int64_t group : {32, 64, 128, -1}) {
      for (RtnOptions options : variants()) {
        options.group_size = group;
        SCOPED_TRACE(name_of(options) + " columns " + std::to_string(columns) + " seed " + std::to_string(++seed));
        expect_nearest(gaussian(columns * 2, seed), 2, options);
      }
    }
  }
}

TEST(Rtn, PaddingMeansZero) {
  const std::vector<float> values = gaussian(2 * 13, 3);
  for (const RtnOptions& options : variants()) {
    const Quantized result = quantize_rtn(matrix_of(values, 2), options);
    const std::int64_t per_word = 32 / options.bits;
    const std::int64_t words = (13 + per_word - 1) / per_word;
    for (std::int64_t row = 0; row < 2; ++row) {
      const std::uint32_t zero =
          options.symmetric ? 1u << (options.bits - 1) : result.zeros[static_cast<std::size_t>(row)];
      for (std::int64_t k = 13; k < words * per_word; ++k) {
        const std::uint32_t word = result.words[static_cast<std::size_t>(row * words + k / per_word)];
        EXPECT_EQ((word >> (options.bits * (k % per_word))) & ((1u << options.bits) - 1), zero) << name_of(options);
      }
    }
  }
}

TEST(Rtn, GoldenWord) {
  // The largest magnitude is 7.5, so the scale is exactly 1.
  const std::vector<float> values = {-7.5f, -6.9f, -6.1f, -5.2f, -4.1f, -3.0f, -1.9f, -0.8f};
  const Quantized result = quantize_rtn(matrix_of(values, 1), {4, true, 8, SymmetricRange::half});
  EXPECT_EQ(result.scales[0], 1.0f);
  // They round to -8 (a tie, to even) -7 -6 -5 -4 -3 -2 -1, stored plus 8, lowest nibble first.
  EXPECT_EQ(result.words[0], 0x76543210u);
}

TEST(Rtn, SearchLowersTheError) {
  const std::vector<float> values = gaussian(16 * 1024, 5);
  for (RtnOptions options : variants()) {
    if (options.search_scales) continue;
    const double plain = quantize_rtn(matrix_of(values, 16), options).squared_error;
    options.search_scales = true;
    const double searched = quantize_rtn(matrix_of(values, 16), options).squared_error;
    EXPECT_LE(searched, plain) << name_of(options);
    // On Gaussian groups of 128 in 4 bits, clipping the tails pays clearly.
    if (options.bits == 4) {
      EXPECT_LT(searched, 0.95 * plain) << name_of(options);
    }
  }
}

TEST(Rtn, Bf16InputAndParallelRowsGiveTheSame) {
  std::vector<float> values = gaussian(37 * 192, 7);
  std::vector<std::uint16_t> halves;
  for (float& value : values) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) & 0xffff0000u;
    value = std::bit_cast<float>(bits);
    halves.push_back(static_cast<std::uint16_t>(bits >> 16));
  }
  const ParallelFor threads = [](std::int64_t count, const std::function<void(std::int64_t, std::int64_t)>& body) {
    std::vector<std::thread> running;
    for (std::int64_t begin = 0; begin < count; begin += 10) {
      running.emplace_back([&body, begin, count] { body(begin, std::min(begin + 10, count)); });
    }
    for (std::thread& thread : running) thread.join();
  };
  for (const RtnOptions& options : variants()) {
    const Quantized a = quantize_rtn(matrix_of(values, 37), options);
    const Quantized b = quantize_rtn({"x", Matrix::Type::bf16, halves.data(), 37, 192}, options, threads);
    EXPECT_EQ(a.words, b.words);
    EXPECT_EQ(a.scales, b.scales);
    EXPECT_EQ(a.zeros, b.zeros);
    EXPECT_EQ(a.squared_error, b.squared_error);
  }
}

}  // namespace
}  // namespace facet::quantizer
