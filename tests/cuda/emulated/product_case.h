// A product on the emulated machine, by a plugin, against the one in double.
#pragma once

#include <string>

#include "../linear/device_run.h"
#include "machine.h"

namespace facet::test {

struct ProductCase {
  WeightShape shape;
  std::int64_t rows = 1;
  std::int64_t min_rows = 1;
  std::int64_t max_rows = 8;
  abi::DType output = abi::DType::f32;
  abi::LinearRole role = abi::LinearRole::other;
  std::uint32_t fusions = 0;
  std::int64_t padding = 8;  // elements between rows; 5 leaves them unaligned
  Rounding rounding;
};
std::string to_string(const ProductCase& product);

// Format, group, symmetry, output, padding and gate at random.
ProductCase random_case(std::int64_t out_features, std::int64_t in_features, std::int64_t rows,
                        std::mt19937_64& random);

DeviceProblem device_problem_of(const ProductCase& product);
std::vector<RandomPart> case_parts(const ProductCase& product, std::mt19937_64& random);
// What it must give for these inputs, gated where that is fused.
Expected case_result(const ProductCase& product, const std::vector<float>& inputs,
                     const std::vector<RandomPart>& parts);

// Runs it with fresh inputs. Each product runs four times, in other orders of threads and copies, and must give the
// same bits.
void expect_product(const LoadedPlugin& plugin, const ProductCase& product, std::mt19937_64& random);

// The first seed of a test: fresh, or FACET_SEED of the environment, to see again what a failure has printed.
std::uint64_t first_seed();

template <std::size_t N>
std::int64_t pick(const std::int64_t (&values)[N], std::mt19937_64& random) {
  return values[random() % N];
}

}  // namespace facet::test
