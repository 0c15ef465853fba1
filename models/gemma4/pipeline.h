// Everything from a Config to an engine that runs: host services, plugins, checkpoint, tokenizer, model, scheduler.
#pragma once

#include <memory>
#include <string>

#include "facet/backend/backend.h"
#include "facet/engine/engine.h"
#include "facet/plugin/host_services.h"
#include "facet/tokenizer/tokenizer.h"
#include "gemma4/gemma4_model.h"

namespace facet::gemma4 {

// What several pipelines can have in common: threads, the mapped checkpoint, and packed weights.
struct SharedParts {
  std::unique_ptr<HostServices> services;
  std::unique_ptr<Backend> backend;        // null: the device is not here, and only a plan can be made
  std::unique_ptr<DeviceProfile> absent;   // in its place
  std::unique_ptr<Checkpoint> checkpoint;  // null for a synthetic model
  std::unique_ptr<WeightSource> source;
  std::unique_ptr<WeightStore> store;
  std::filesystem::path model_path;  // symlinks walked; empty for a synthetic model
  std::string synthetic;
  std::string device;  // "cpu" or "cuda"
  std::int64_t threads = 0;
  std::string cpu_isa;

  const DeviceProfile& profile() const { return backend ? *backend : *absent; }
};

struct PipelineOptions {
  std::vector<std::filesystem::path> plugin_dirs;  // --plugin-dir
  QuantizeWeight quantize;                         // needed when model.head asks for another format
  bool only_plan = false;  // without a GPU, plan a CUDA configuration all the same; load() is not called then
};

class Pipeline {
 public:
  // Plans everything; allocates no weight, KV or activation memory. `shared` may come from another pipeline whose
  // checkpoint, engine.device, engine.threads and engine.cpu_isa are equal (see can_share); null: parts of its own.
  Pipeline(Config config, PipelineOptions options, std::shared_ptr<SharedParts> shared = nullptr);
  ~Pipeline();

  const Config& config() const { return config_; }
  const ModelPlan& plan() const { return *plan_; }
  const std::shared_ptr<SharedParts>& shared() const { return shared_; }
  bool can_share(const Config& other) const;
  MemoryPlan memory() const { return plan_->memory(); }
  PluginRegistry& registry() { return *registry_; }
  // Loaded at first use. Throws Error(config) for a synthetic model, which has none.
  const Tokenizer& tokenizer();
  std::vector<std::int32_t> stop_ids() const;

  // Reads weights and allocates. `progress(done, total)` may be empty.
  void load(const std::function<void(std::size_t, std::size_t)>& progress = {});
  // Only after load().
  Model& model() { return *model_; }
  SchedulerInstance& scheduler() { return scheduler_; }
  std::unique_ptr<Engine> make_engine();
  // Linear, attention, cache and scheduler plugins with their calls so far.
  std::vector<PluginUse> plugin_use() const;

 private:
  void make_scheduler();

  Config config_;
  PipelineOptions options_;
  std::shared_ptr<SharedParts> shared_;
  std::unique_ptr<PluginRegistry> registry_;
  std::unique_ptr<ModelPlan> plan_;
  SchedulerInstance scheduler_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace facet::gemma4
