// One kind of linear layer under several plugins: what `facet bench --tune` times.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "facet/engine/linear_module.h"
#include "gemma4/gemma4_model.h"

namespace facet::cli {

// A plugin with its options as the only rule of a configuration, and the modules it makes from that.
struct TunedPlugin {
  Config config;
  std::unique_ptr<LinearAssembler> assembler;
  const PluginChoice& choice() const { return config.linear.front().choice; }
};

// All layers' linears of one kind, "layers.*.mlp.down_proj".
struct TunedKind {
  std::string layers;
  std::vector<const LinearSpec*> specs;
  std::int64_t max_rows() const { return specs.front()->max_rows; }
};

// Kinds in an order in which the first pattern that matches a module is its own.
std::vector<TunedKind> tuned_kinds(const std::vector<LinearSpec>& specs);

// Inputs and outputs that are large enough for every kind; random values.
class TuneBuffers {
 public:
  TuneBuffers(Backend& backend, const std::vector<LinearSpec>& specs);
  // One call of the group as the model makes it: with the norm before it, and the GELU gate behind it.
  void run(LinearGroup& group, const LinearSpec& spec, std::int64_t rows, const Workspace& workspace);

 private:
  DeviceBuffer filled(std::int64_t count, abi::DType type);

  Backend& backend_;
  std::minstd_rand random_{1};
  DeviceBuffer hidden_, hidden_out_, update_, norm_, normed_, wide_, output_;
};

// Groups of one kind under one plugin, planned for `rows` and loaded.
class TuneArm {
 public:
  // Throws Error(plugin) where the plugin does not take so many rows of every layer.
  TuneArm(Backend& backend, TunedPlugin& plugin, const TunedKind& kind, std::int64_t rows);
  ~TuneArm() { backend_.forget_recorded(this); }
  TuneArm(const TuneArm&) = delete;
  TuneArm& operator=(const TuneArm&) = delete;

  void load(const LoadWeight& load, WeightStore& store);
  // Touches what nothing has touched before: memory, and kernels that are loaded at their first launch.
  void warm_up(TuneBuffers& buffers);
  // Microseconds of one matrix, all layers one after another so that no cache holds what a step would not find there.
  double measure(TuneBuffers& buffers);

 private:
  void run(TuneBuffers& buffers);

  Backend& backend_;
  const TunedKind& kind_;
  std::int64_t rows_;
  std::vector<LinearGroup> groups_;
  Workspace workspace_;
};

}  // namespace facet::cli
