// Plans, packs and runs one problem on the device, with guards around every buffer and NaN wherever nothing was
// written.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../../linear/loaded_plugin.h"
#include "../../linear/random_weights.h"

namespace facet::test {

// Why there is no device to test on; empty when there is one.
std::string missing_device();

void check(cudaError_t result, const char* what);

// Device memory between guards; filled with 0xff (NaN as float and bf16).
class DeviceBytes {
 public:
  explicit DeviceBytes(std::uint64_t bytes);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  std::uint8_t* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  abi::Memory memory() const { return {data_, bytes_}; }
  void poison() const;
  void write(const void* source, std::uint64_t bytes) const;
  std::vector<std::uint8_t> read() const;
  bool intact() const;

 private:
  std::uint64_t bytes_;
  std::uint8_t* base_ = nullptr;
  std::uint8_t* data_ = nullptr;
};

struct DeviceProblem {
  WeightShape shape;  // out_features of all parts together
  std::int64_t max_rows = 1;
  abi::DType output = abi::DType::bf16;
  abi::LinearRole role = abi::LinearRole::other;
  std::uint32_t fusions = 0;
};

abi::LinearProblem device_problem(const DeviceProblem& problem);

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

// A planned and packed matrix on the device.
class DeviceMatrix {
 public:
  DeviceMatrix(const LoadedPlugin& plugin, const DeviceProblem& problem, const std::vector<RandomPart>& parts);
  ~DeviceMatrix();
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;

  const abi::LinearPlan& plan() const { return plan_; }
  std::vector<std::uint8_t> packed() const { return packed_->read(); }
  std::int64_t columns() const;  // of the output
  // Output rows for bf16-valued inputs [rows][in_features]. Runs eagerly twice and once from a captured graph, which
  // must give the same bits, and reports broken guards and unwritten outputs as test failures.
  std::vector<float> run(const std::vector<float>& inputs, std::int64_t padding = 8);
  std::vector<float> run(ResidualInputs& residual, std::int64_t rows);

 private:
  std::vector<float> run_args(abi::LinearArgs& args, std::int64_t padding);

  const LoadedPlugin& plugin_;
  DeviceProblem problem_;
  abi::LinearPlan plan_{};
  std::unique_ptr<DeviceBytes> packed_;
};

std::vector<std::uint16_t> to_bf16(const std::vector<float>& values);
// Normal values, rounded to bf16; one in a hundred is a thousand times larger, as activations of Gemma are.
std::vector<float> bf16_inputs(std::int64_t count, std::mt19937_64& random);
// `count` parts that together have shape.out_features rows.
std::vector<RandomPart> device_parts(const WeightShape& shape, int count, std::mt19937_64& random);

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

}  // namespace facet::test
