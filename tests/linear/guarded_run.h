// Plans, packs and runs one problem with guards around every buffer the plugin may touch.
#pragma once

#include <functional>
#include <vector>

#include "loaded_plugin.h"
#include "random_weights.h"

namespace facet::test {

// `bytes` bytes, 64-byte aligned, between two guards; filled with 0xff (NaN as float and bf16).
class GuardedBytes {
 public:
  explicit GuardedBytes(std::uint64_t bytes);
  std::uint8_t* data() { return storage_.data() + start_; }
  abi::Memory memory() { return {data(), bytes_}; }
  bool intact() const;

 private:
  std::uint64_t bytes_;
  std::size_t start_;
  std::vector<std::uint8_t> storage_;
};

struct Problem {
  WeightShape shape;  // out_features of all parts together
  std::int64_t max_rows = 1;
};

abi::LinearProblem linear_problem(const Problem& problem);

// A planned and packed matrix.
class PlannedMatrix {
 public:
  PlannedMatrix(const LoadedPlugin& plugin, const Problem& problem, const std::vector<RandomPart>& parts);
  ~PlannedMatrix();
  PlannedMatrix(const PlannedMatrix&) = delete;
  PlannedMatrix& operator=(const PlannedMatrix&) = delete;

  const abi::LinearPlan& plan() const { return plan_; }
  // Output rows [rows][out_features] for inputs [rows][in_features]. Reports a broken guard, an output left unwritten
  // and a write outside the rows as test failures.
  std::vector<float> run(const std::vector<float>& inputs);

 private:
  const LoadedPlugin& plugin_;
  Problem problem_;
  std::vector<abi::WeightView> views_;
  abi::LinearPlan plan_{};
  std::vector<GuardedBytes> packed_;
};

std::vector<float> random_inputs(std::int64_t count, std::mt19937_64& random);

// What a result may differ from the exact product by. Errors add up over the inputs:
//   fp32 sums    (in_features + 8) eps sum |x| |w|, zero points counted apart where a kernel applies them apart
//   bf16 inputs  2^-8 of |x| |w| each
//   int8 inputs  half a step of the largest |x| of their 128 inputs, times |w|
enum class InputRounding { fp32, bf16, int8 };

// Compares all of `outputs` with the product in double; reports the worst excess.
void expect_product(const std::vector<float>& outputs, const std::vector<float>& inputs,
                    const std::vector<RandomPart>& parts, const WeightShape& shape, InputRounding rounding);

}  // namespace facet::test
