// A linear layer of the model, or several stacked ones that share their input, bound to plugins by row count.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "facet/checkpoint/linear_weight.h"
#include "facet/config/config.h"
#include "facet/engine/linear_rules.h"
#include "facet/engine/plugin_choice.h"
#include "facet/engine/weight_store.h"
#include "facet/engine/workspace.h"
#include "facet/memory/memory_plan.h"

namespace facet {

// One instance of a linear plugin with its options; shared by all modules that use it.
struct LinearInstance {
  PluginInstance<abi::Linear> plugin;
  std::string options;  // resolved, as text
  CallCounter counter;
};

// How one weight is stored in the checkpoint (or will be after conversion at load).
struct LinearFormat {
  abi::WeightFormat format = abi::WeightFormat::bf16;
  std::int64_t group_size = 0;  // 0 for bf16; in_features for one scale a row
  bool symmetric = true;
  bool operator==(const LinearFormat&) const = default;

  // Bytes of the codes or bf16 values of a matrix [out, in] in a checkpoint.
  std::uint64_t value_bytes(std::int64_t out_features, std::int64_t in_features) const;
  // Bytes of its scales (f32) and zero codes as abi::WeightView shows them.
  std::uint64_t side_bytes(std::int64_t out_features, std::int64_t in_features) const;
};

// Linears that read the same input and write side by side into one output row: q|k|v, gate|up, or a single one.
struct LinearSpec {
  struct Part {
    std::string name;  // without model prefix: "layers.3.self_attn.q_proj", "lm_head"
    std::int64_t out_features = 0;
    abi::LinearRole role = abi::LinearRole::other;
    LinearFormat format;
  };
  std::vector<Part> parts;
  abi::LinearRole stacked_role = abi::LinearRole::other;  // when all parts become one kernel call
  std::int64_t in_features = 0;
  std::int32_t layer = -1;
  std::int64_t max_rows = 1;
  std::uint32_t fusions = 0;  // bits of abi::LinearFusion that help when one kernel call does all parts
  bool float_output = false;  // f32 whatever the activations are: logits

  std::int64_t out_features() const;
};

// The plugin that serves rows [min_rows, max_rows], and why the others before it do not.
struct LinearChoice {
  std::int64_t min_rows = 1;
  std::int64_t max_rows = 1;
  abi::LinearProblem problem{};  // as the kernel took it, or might take it where it is not planned()
  std::shared_ptr<LinearInstance> instance;
  std::string rule;   // key path of the rule that won
  int rule_line = 0;  // of its plugin in the file that the key path is of
  std::vector<Refusal> refused;
  abi::LinearPlan plan{};
  std::shared_ptr<void> plan_owner;  // releases plan.handle
  const void* packed = nullptr;

  // False: the plugin cannot plan without its device, which is not here (PluginRegistry::create). Sizes are 0 then.
  bool planned() const { return static_cast<bool>(instance->plugin); }
};

// Loads the weight of a part by name.
using LoadWeight = std::function<LinearWeight(const LinearSpec::Part& part, std::int64_t in_features)>;

// One kernel call: one part, or all parts of a spec stacked.
class LinearModule {
 public:
  // output: element type of y, for the place of parts that are not stacked.
  LinearModule(std::vector<LinearSpec::Part> parts, std::int64_t in_features, std::int32_t layer, abi::DType output,
               std::vector<LinearChoice> choices);

  // "layers.3.self_attn.{q_proj,k_proj,v_proj}"
  std::string name() const;
  const std::vector<LinearSpec::Part>& parts() const { return parts_; }
  std::int32_t layer() const { return layer_; }
  std::int64_t in_features() const { return in_features_; }
  std::int64_t out_features() const { return out_features_; }
  const std::vector<LinearChoice>& choices() const { return choices_; }
  std::uint64_t workspace_bytes() const;
  // Packed copies this module needs, for the plan and the load alike.
  std::vector<WeightStore::Key> packed_keys() const;
  bool reads_in_place() const;
  // Bytes that the weights read in place hold beside the file, after load().
  std::uint64_t owned_bytes() const;

  void load(const LoadWeight& load_weight, WeightStore& store);
  // The choice that serves `rows`; throws Error(run) when they are more than was planned for.
  LinearChoice& choice(std::int64_t rows);
  abi::DType output_type() const { return output_; }
  // output[rows, out_features] = input[rows, in_features] W^T; strides in elements. workspace of workspace_bytes() or
  // more.
  // residual instead of input where the choice fuses it.
  void run(const Backend& backend, std::int64_t rows, const void* input, void* output, std::int64_t output_stride,
           const Workspace& workspace, const abi::LinearResidual* residual = nullptr);

 private:
  std::vector<LinearSpec::Part> parts_;
  std::int64_t in_features_;
  std::int64_t out_features_ = 0;
  std::int32_t layer_;
  abi::DType output_;
  std::vector<LinearChoice> choices_;
  std::vector<LinearWeight> weights_;  // only when a plan reads in place
  std::vector<abi::WeightView> views_;
};

// All kernel calls of one spec, in the order of its parts.
class LinearGroup {
 public:
  explicit LinearGroup(std::vector<LinearModule> modules) : modules_(std::move(modules)) {}
  std::vector<LinearModule>& modules() { return modules_; }
  const std::vector<LinearModule>& modules() const { return modules_; }
  // output row stride is the sum of all parts.
  void run(const Backend& backend, std::int64_t rows, const void* input, void* output, const Workspace& workspace);
  // The same on the residual stream: its update and norm are done by the kernel, or before it.
  void run_normed(Backend& backend, const ResidualInput& input, void* output, const Workspace& workspace);
  // gate|up on the residual stream, then output[rows, half] = gelu(gate) * up; `wide` [rows, 2 * half] is scratch.
  void run_gated(Backend& backend, const ResidualInput& input, void* wide, void* output, const Workspace& workspace);

 private:
  std::uint32_t fusions(std::int64_t rows);
  std::vector<LinearModule> modules_;
};

// Chooses plugins for specs by the rules of a config. Lives as long as the modules it makes.
class LinearAssembler {
 public:
  // activations: element type of every input and of outputs that are not float_output.
  LinearAssembler(const Config& config, PluginRegistry& registry, abi::Device device, abi::DType activations)
      : config_(config), registry_(registry), device_(device), activations_(activations) {}

  // Parts are stacked into one call when their formats are equal and the same rules decide for all of them. The rows of
  // a rule are divided where its plugin fuses more at fewer of them and takes the others alone.
  // Throws Error(plugin) with every reason when a row count is served by nobody.
  LinearGroup plan(const LinearSpec& spec);
  const std::vector<std::shared_ptr<LinearInstance>>& instances() const { return instances_; }

 private:
  std::vector<RuleRows> intervals(const std::string& name, std::int64_t max_rows) const;
  LinearModule bind(std::vector<LinearSpec::Part> parts, const LinearSpec& spec,
                    const std::vector<RuleRows>& intervals);
  std::vector<LinearChoice> choose(abi::LinearProblem problem, const LinearRule& rule, const std::string& name);
  std::shared_ptr<LinearInstance> instance(const PluginChoice& choice, const Candidate& candidate);

  const Config& config_;
  PluginRegistry& registry_;
  abi::Device device_;
  abi::DType activations_;
  std::vector<std::shared_ptr<LinearInstance>> instances_;
};

}  // namespace facet
