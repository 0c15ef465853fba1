// Random weights in canonical form, their decoded values in double, and inputs: what the tests compare against. The
// decoder here is written from abi/weight.h alone and shares nothing with the plugins.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "facet/abi/weight.h"

namespace facet::test {

struct WeightShape {
  abi::WeightFormat format = abi::WeightFormat::int4;
  std::int64_t out_features = 16;
  std::int64_t in_features = 128;
  std::int64_t group_size = 128;  // ignored for bf16
  bool symmetric = true;
};

// One part. Storage is exactly as large as the contract says, so that a sanitizer sees a read past the end; bits past
// in_features are random, and bf16 rows start at odd multiples of two bytes.
class RandomPart {
 public:
  RandomPart(const WeightShape& shape, std::mt19937_64& random);

  abi::WeightView view() const;
  // (code - zero) * scale or the bf16 value, exact.
  double weight(std::int64_t row, std::int64_t column) const;
  // Largest magnitude that enters sums for this weight when zero points are applied apart from codes.
  double magnitude(std::int64_t row, std::int64_t column) const;
  void set_code(std::int64_t row, std::int64_t column, int code);
  std::vector<float>& scales() { return scales_; }
  std::vector<std::uint8_t>& zeros() { return zeros_; }

 private:
  int code(std::int64_t row, std::int64_t column) const;
  std::int64_t group(std::int64_t row, std::int64_t column) const;

  WeightShape shape_;
  std::int64_t groups_ = 0;
  std::int64_t row_bytes_ = 0;
  std::int64_t offset_ = 0;  // bytes before the first row
  std::vector<std::uint8_t> values_;
  std::vector<float> scales_;
  std::vector<std::uint8_t> zeros_;
};

// Parts that together have shape.out_features rows: `count` of them, or fewer where the rows run out before.
std::vector<RandomPart> random_parts(const WeightShape& shape, int count, std::mt19937_64& random);

double bf16_value(std::uint16_t bits);
std::uint16_t bf16_bits(double value);  // nearest even

}  // namespace facet::test
