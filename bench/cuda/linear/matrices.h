// Linear plugins with random packed matrices on the device, as many copies as it takes that the L2 cache holds none.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "facet/abi/linear.h"
#include "facet/abi/plugin.h"

namespace facet::bench {

struct Shape {
  std::string name;
  abi::LinearRole role;
  std::int64_t out_features;
  std::int64_t in_features;
};

// An instance of linear_<name>.so; integer and boolean options by name.
class CudaPlugin {
 public:
  CudaPlugin(const std::string& name, const std::map<std::string, std::int64_t>& options);
  ~CudaPlugin();
  CudaPlugin(const CudaPlugin&) = delete;
  CudaPlugin& operator=(const CudaPlugin&) = delete;
  abi::Linear& linear() const { return *linear_; }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  const abi::PluginDescriptor* descriptor_ = nullptr;
  abi::Linear* linear_ = nullptr;
};

// Random weights of a shape in canonical form: int4 in groups of 128, or bf16. y has about the spread of x.
class HostWeights {
 public:
  HostWeights(const Shape& shape, abi::WeightFormat format);
  const abi::WeightView& view() const { return view_; }

 private:
  std::vector<std::uint64_t> values_;
  std::vector<float> scales_;
  abi::WeightView view_{};
};

// One planned shape with `copies` packed matrices.
class Matrices {
 public:
  Matrices(const CudaPlugin& plugin, const Shape& shape, abi::WeightFormat format, std::int64_t max_rows,
           abi::DType output, std::uint32_t fusions, int copies);
  ~Matrices();
  Matrices(const Matrices&) = delete;
  Matrices& operator=(const Matrices&) = delete;

  const abi::LinearPlan& plan() const { return plan_; }
  int copies() const { return static_cast<int>(packed_.size()); }
  double pack_seconds() const { return pack_seconds_; }
  // Launches the product with copy `copy`; throws with the plugin's text.
  void run(int copy, abi::LinearArgs args, const DeviceMemory& workspace, cudaStream_t stream) const;

 private:
  const CudaPlugin& plugin_;
  abi::LinearPlan plan_{};
  std::vector<DeviceMemory> packed_;
  double pack_seconds_ = 0;
};

}  // namespace facet::bench
