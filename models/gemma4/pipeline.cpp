#include "gemma4/pipeline.h"

#include "facet/backend/cpu_backend.h"
#include "facet/backend/cuda_backend.h"
#include "facet/base/log.h"
#include "facet/engine/plugin_choice.h"
#include "gemma4/chat.h"

namespace facet::gemma4 {
namespace {

constexpr std::uint64_t kSyntheticSeed = 1;

// "auto" is the CPU, which every plugin set can be run on; a GPU is used when it is asked for.
std::string device_of(const Config& config) {
  if (config.engine.device != "auto") return config.engine.device;
  log(LogLevel::info, "engine.device auto: cpu; write \"cuda\" for a GPU");
  return "cpu";
}

// "no GPU: ..." of "engine.device: 'cuda' is not available: no GPU: ...; use ...".
std::string absence_of(const Error& error) {
  std::string reason = error.message();
  constexpr std::string_view kBefore = "not available: ";
  const std::size_t begin = reason.find(kBefore), end = reason.rfind("; use ");
  if (begin == std::string::npos || end == std::string::npos || end < begin) return reason;
  return reason.substr(begin + kBefore.size(), end - begin - kBefore.size());
}

// With `only_plan` a GPU that cannot be used is no mistake.
void open_device(SharedParts& parts, bool only_plan) {
  if (parts.device != "cuda") {
    parts.backend = make_cpu_backend(*parts.services);
    return;
  }
  try {
    parts.backend = make_cuda_backend();
  } catch (const Error& error) {
    if (!only_plan) throw;
    parts.absent = make_absent_cuda(absence_of(error));
  }
}

std::shared_ptr<SharedParts> make_shared_parts(const Config& config, bool only_plan) {
  auto parts = std::make_shared<SharedParts>();
  parts->services = std::make_unique<HostServices>(config.engine.threads, config.engine.cpu_isa);
  if (config.model.synthetic.empty()) {
    parts->checkpoint = std::make_unique<Checkpoint>(Checkpoint::open(config.model.path));
    parts->source = make_checkpoint_source(*parts->checkpoint);
  } else {
    parts->source = make_synthetic_source(config.model.synthetic, kSyntheticSeed, *parts->services->table());
  }
  parts->device = device_of(config);
  open_device(*parts, only_plan);
  if (parts->backend) parts->store = std::make_unique<WeightStore>(*parts->backend);
  parts->model_path = config.model.path;
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
  plan_ = std::make_unique<ModelPlan>(config_, shared_->source->facts(), *registry_, device);
  make_scheduler();
}

Pipeline::~Pipeline() = default;

bool Pipeline::can_share(const Config& other) const {
  return shared_->model_path == other.model.path && shared_->synthetic == other.model.synthetic &&
         shared_->device == device_of(other) && shared_->threads == other.engine.threads &&
         shared_->cpu_isa == other.engine.cpu_isa;
}

void Pipeline::make_scheduler() {
  const ResolvedPlugin resolved = resolve_plugin(config_, *registry_, abi::PluginKind::scheduler, config_.scheduler,
                                                 {config_.scheduler.plugin, true});
  scheduler_.plugin = registry_->create<abi::Scheduler>(resolved.plugin, resolved.options);
  scheduler_.options = resolved.options.to_string();
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
