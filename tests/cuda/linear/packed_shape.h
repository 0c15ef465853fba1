// Shapes of the packed form for the tests of how products are cut.
#pragma once

#include "quant_gptq/cuda/rows32/pack.h"

namespace facet::test {

inline linear::Rows32 packed_shape(std::int64_t out, std::int64_t in, std::int64_t group, bool int8,
                                   bool symmetric = true) {
  abi::LinearProblem problem{};
  problem.weight = int8 ? abi::WeightFormat::int8 : abi::WeightFormat::int4;
  problem.out_features = out;
  problem.in_features = in;
  problem.group_size = group;
  problem.symmetric = symmetric ? 1 : 0;
  return linear::rows32_shape(problem);
}

}  // namespace facet::test
