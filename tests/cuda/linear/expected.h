// Random inputs, the exact results of products, and what a result may differ from them by.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "../../linear/random_weights.h"
#include "facet/abi/linear.h"

namespace facet::test {

// Inputs of a fused residual norm: [rows][in_features], the norms [in_features].
struct ResidualInputs {
  std::vector<float> hidden;
  std::vector<float> update;  // bf16 values; empty: none
  std::vector<float> post_norm;
  std::vector<float> next_norm;
  float epsilon = 1e-6f;
  float scale = 1.0f;
  std::vector<float> hidden_out;  // written by the run
};

std::vector<std::uint16_t> to_bf16(const std::vector<float>& values);
// Normal values, rounded to bf16; one in a hundred is a thousand times larger, as activations of Gemma are.
std::vector<float> bf16_inputs(std::int64_t count, std::mt19937_64& random);

// What a result may differ from the exact product by, beside (in_features + 8) eps sum |x| |w| of fp32 sums: the
// output's rounding, and per input or weight:
struct Rounding {
  double weight = 0;   // relative, of weights: 2^-8 where they pass through bf16
  double segment = 0;  // of the largest |x| of each 128 inputs (or fewer under one scale), for every input
};

// The exact output and the bound on the error of every element, [rows][out_features].
struct Expected {
  std::vector<double> exact;
  std::vector<double> allowed;  // without the output's rounding
};
Expected expected_product(const std::vector<float>& inputs, const std::vector<RandomPart>& parts,
                          const WeightShape& shape, Rounding rounding);

// Every element within its bound and half a step of the output type; reports the worst.
void expect_close(const std::vector<float>& outputs, const Expected& expected, abi::DType output);

// The gated output of a product of `rows` rows, gate and up side by side, and what errors of the product become.
Expected gated(const Expected& product, std::size_t rows);

// Inputs of a fused residual norm, and what they are after it. `updated`: there is an update; `cancelled`: it takes
// away all but 2^-7 of the stream.
struct RandomResidual {
  ResidualInputs residual;
  std::vector<float> inputs;   // of the product
  std::vector<double> hidden;  // the new residual stream
  double norm_error = 0;       // relative, of each input
};
RandomResidual random_residual(std::int64_t rows, std::int64_t in_features, bool updated, bool cancelled,
                               std::mt19937_64& random);
// The residual stream that a run has written.
void expect_hidden_close(const RandomResidual& made);

}  // namespace facet::test
