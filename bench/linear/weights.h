// Seeded weights for timing: values do not matter, but must be finite and not all equal.
#pragma once

#include <vector>

#include "facet/abi/linear.h"

namespace facet::bench {

struct Shape {
  std::int64_t in_features;
  std::int64_t out_features;
};

// One matrix in canonical form; symmetric.
class SeededWeights {
 public:
  SeededWeights(Shape shape, abi::WeightFormat format, std::int64_t group_size, std::uint64_t seed);
  abi::WeightView view() const;

 private:
  Shape shape_;
  abi::WeightFormat format_;
  std::int64_t group_size_;
  std::int64_t row_bytes_;
  std::vector<std::uint64_t> values_;
  std::vector<float> scales_;
};

}  // namespace facet::bench
