// Small random layers and their calibration inputs, and the sums they should give, in double.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "facet/quantizer/gptq.h"

namespace facet::quantizer {

// Weights [outputs, inputs] and rows of inputs that are correlated, as activations of a model are: uncorrelated ones
// leave error feedback nothing to do.
struct RandomLayer {
  RandomLayer(std::int64_t outputs, std::int64_t inputs, std::int64_t rows, unsigned seed);

  std::int64_t outputs, inputs, rows;
  std::vector<float> weights;  // [outputs, inputs]
  std::vector<float> x;        // [rows, inputs]

  Matrix matrix() const { return {"layer.weight", Matrix::Type::f32, weights.data(), outputs, inputs}; }
  // Adds all rows, some hundred at a time.
  Hessian hessian() const;
  // 2/N X^T X.
  std::vector<double> exact_hessian() const;
};

// 1/2 tr(D H D^T) for D = weights - quantized.
double exact_error(const RandomLayer& layer, const std::vector<double>& hessian, const Quantized& quantized,
                   const GptqOptions& options);
float value_of(const Quantized& quantized, const GptqOptions& options, std::int64_t columns, std::int64_t row,
               std::int64_t column);

// Pieces of different sizes on threads of their own.
inline const ParallelFor kThreads = [](std::int64_t count,
                                       const std::function<void(std::int64_t, std::int64_t)>& body) {
  std::vector<std::thread> running;
  for (std::int64_t begin = 0, size = 1; begin < count; begin += size, size = size % 3 + 1)
    running.emplace_back([&body, begin, end = std::min(begin + size, count)] { body(begin, end); });
  for (std::thread& thread : running) thread.join();
};

}  // namespace facet::quantizer
