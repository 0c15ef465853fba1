// Plans, packs and runs one problem on the device, with guards around every buffer and NaN wherever nothing was
// written.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "../../linear/loaded_plugin.h"
#include "expected.h"

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
  std::int64_t min_rows = 1;
};

abi::LinearProblem device_problem(const DeviceProblem& problem);

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

}  // namespace facet::test
