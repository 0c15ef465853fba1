#include "gemma4/pipeline.h"

#include "facet/backend/cpu_backend.h"
#include "facet/backend/cuda_backend.h"
#include "facet/engine/plugin_choice.h"
#include "facet/plugin/cuda_plugins.h"
#include "gemma4/chat.h"

namespace facet::gemma4 {
namespace {

constexpr std::uint64_t kSyntheticSeed = 1;

// With `only_plan` a GPU that cannot be used is no mistake.
void open_device(SharedParts& parts, bool only_plan) {
  if (parts.device != "cuda") {
    parts.backend = make_cpu_backend(*parts.services);
    return;
  }
  try {
    parts.backend = make_cuda_backend();
  } catch (const Error& error) {
    if (!only_plan)
      throw_error(error.kind(), "engine.device: 'cuda' is not available: {}; {}", error.message(), kCpuCure);
    parts.absent = make_absent_cuda(error.message());
  }
}

std::unique_ptr<WeightSource> open_synthetic(const Config& config, const abi::HostTable& host) {
  try {
    return make_synthetic_source(config.model.synthetic, kSyntheticSeed, host);
  } catch (Error& error) {
    if (config.model.line > 0)
      error.add_context(fmt::format("{}:{}: model.synthetic = \"{}\"", config.file.string(), config.model.line,
                                    config.model.synthetic));
    throw;
  }
}

std::shared_ptr<SharedParts> make_shared_parts(const Config& config, bool only_plan) {
  auto parts = std::make_shared<SharedParts>();
  parts->services = std::make_unique<HostServices>(config.engine.threads, config.engine.cpu_isa);
  if (config.model.synthetic.empty()) {
    parts->checkpoint = std::make_unique<Checkpoint>(Checkpoint::open(config.model.path));
    parts->source = make_checkpoint_source(*parts->checkpoint);
  } else {
    parts->source = open_synthetic(config, *parts->services->table());
  }
  parts->device = config.engine.device;
  open_device(*parts, only_plan);
  if (parts->backend) parts->store = std::make_unique<WeightStore>(*parts->backend);
  parts->model_path = config.model.real_path();
  parts->synthetic = config.model.synthetic;
  parts->threads = config.engine.threads;
  parts->cpu_isa = config.engine.cpu_isa;
  return parts;
}

// What another device measured says nothing about this one. One that is not here cannot be held against it.
void check_tuning(const Config& config, const DeviceProfile& device) {
  const LinearTuning& tuning = config.tuning;
  if (tuning.file.empty() || !device.absence().empty() || tuning.device == device.description()) return;
  throw_error(ErrorKind::config,
              "{}:{}: linear.tuning: {} was measured on '{}', this device is '{}'; leave the key out, or measure here "
              "with 'facet bench CONFIG --tune FILE'",
              config.file.string(), tuning.line, tuning.file.string(), tuning.device, device.description());
}

}  // namespace

Pipeline::Pipeline(Config config, PipelineOptions options, std::shared_ptr<SharedParts> shared)
    : config_(std::move(config)), options_(std::move(options)), shared_(std::move(shared)) {
  if (!shared_) shared_ = make_shared_parts(config_, options_.only_plan);
  std::vector<std::filesystem::path> directories = config_.plugin_paths;
  directories.insert(directories.end(), options_.plugin_dirs.begin(), options_.plugin_dirs.end());
  const DeviceProfile& device = shared_->profile();
  check_tuning(config_, device);
  registry_ = std::make_unique<PluginRegistry>(shared_->services->table(), std::move(directories),
                                               shared_->backend ? abi::Device::none : device.device());
  check_choices(config_, *registry_);
  plan_ = std::make_unique<ModelPlan>(config_, shared_->source->facts(), *registry_, device);
  make_scheduler();
}

Pipeline::~Pipeline() = default;

bool Pipeline::can_share(const Config& other) const {
  return shared_->model_path == other.model.real_path() && shared_->synthetic == other.model.synthetic &&
         shared_->device == other.engine.device && shared_->threads == other.engine.threads &&
         shared_->cpu_isa == other.engine.cpu_isa;
}

void Pipeline::make_scheduler() {
  const Candidate candidate = candidates(config_.scheduler).front();
  auto made = make_plugin<abi::Scheduler>(
      config_, *registry_, candidate,
      resolve_plugin(config_, *registry_, abi::PluginKind::scheduler, config_.scheduler, candidate));
  scheduler_.plugin = std::move(made.instance);
  scheduler_.options = std::move(made.options);
}

const Tokenizer& Pipeline::tokenizer() {
  if (!config_.model.synthetic.empty()) {
    throw_error(ErrorKind::config,
                "{}: model.synthetic '{}' has no tokenizer; give token ids (--prompt-ids, prompt_ids)",
                config_.file.string(), config_.model.synthetic);
  }
  if (!tokenizer_) tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::load(config_.model.path / "tokenizer.json"));
  return *tokenizer_;
}

std::vector<std::int32_t> Pipeline::stop_ids() const {
  if (shared_->checkpoint == nullptr) return {};
  const Checkpoint& checkpoint = *shared_->checkpoint;
  return gemma4::stop_ids(checkpoint.file_text("generation_config.json").value_or(""), checkpoint.config_json(), {},
                          {checkpoint.directory(), shared_->source->facts().model.vocabulary});
}

void Pipeline::load(const std::function<void(std::size_t, std::size_t)>& progress) {
  QuantizeWeight quantize = options_.quantize;
  if (!quantize) {
    quantize = [this](const LinearWeight&, const LinearFormat&) -> LinearWeight {
      throw_error(ErrorKind::config,
                  "{}: model.head: '{}' is not how the checkpoint stores it, and this program has no quantizer",
                  config_.file.string(), config_.model.head);
    };
  }
  model_ =
      std::make_unique<Gemma4Model>(*plan_, *shared_->source, *shared_->backend, *shared_->store, quantize, progress);
}

std::unique_ptr<Engine> Pipeline::make_engine() {
  const std::int64_t chunk =
      config_.engine.prefill_chunk > 0 ? config_.engine.prefill_chunk : config_.engine.max_step_tokens;
  const bool run_ahead = shared_->backend->device() != abi::Device::cpu;
  return std::make_unique<Engine>(
      *model_, scheduler_,
      EngineLimits{config_.engine.max_sequences, config_.engine.max_step_tokens, chunk, run_ahead});
}

std::vector<PluginUse> Pipeline::plugin_use() const {
  std::vector<PluginUse> uses = model_->plugin_use();
  const LoadedPlugin& plugin = scheduler_.plugin.plugin();
  uses.push_back({to_string(plugin.descriptor->kind), plugin.descriptor->name, plugin.descriptor->version,
                  plugin.file.string(), scheduler_.options, "scheduler", plugin.file_hash, scheduler_.counter.calls,
                  scheduler_.counter.nanoseconds});
  return uses;
}

}  // namespace facet::gemma4
