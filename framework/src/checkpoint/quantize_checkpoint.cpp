// Streams a dense checkpoint into a quantized one.
#include <algorithm>
#include <cstring>
#include <set>

#include "facet/base/error.h"
#include "facet/base/text.h"
#include "facet/checkpoint/gptq_writer.h"
#include "facet/checkpoint/prefixes.h"
#include "facet/checkpoint/quantized_writer.h"

namespace facet {
namespace {

// A link counts as existing even when it leads nowhere: renaming would replace it.
bool is_taken(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

std::filesystem::path partial_name(const std::filesystem::path& out) {
  std::filesystem::path partial = out;
  partial += ".partial";
  return partial;
}

// Whether a folder holds but what this writes: weights, JSON and template files, whole or partial.
bool is_own_partial(const std::filesystem::path& partial) {
  if (!std::filesystem::is_directory(std::filesystem::symlink_status(partial))) return false;
  const std::set<std::string> known = {".safetensors", ".json", ".jinja", ".model", ".partial"};
  return std::all_of(std::filesystem::directory_iterator(partial), std::filesystem::directory_iterator(),
                     [&](const std::filesystem::directory_entry& entry) {
                       return entry.is_regular_file() && known.contains(entry.path().extension().string());
                     });
}

void check_free(const std::filesystem::path& out, bool replace_partial) {
  if (out.empty()) throw_error(ErrorKind::usage, "the folder to write has an empty name; name one to create");
  if (is_taken(out)) {
    std::error_code error;
    const bool leads_nowhere = !std::filesystem::exists(out, error);
    throw_error(ErrorKind::run, "{}: exists already{}; choose another folder or delete it", out.string(),
                leads_nowhere ? " as a link that leads nowhere" : "");
  }
  if (is_taken(partial_name(out)) && !replace_partial) {
    throw_error(ErrorKind::run, "{}: exists; another run is writing it, or one was interrupted: delete it then",
                partial_name(out).string());
  }
  if (is_taken(partial_name(out)) && !is_own_partial(partial_name(out))) {
    throw_error(ErrorKind::run, "{}: is in the way and no partial checkpoint; move it or choose another --out",
                partial_name(out).string());
  }
}

// A folder that is removed unless it got its final name.
class PartialFolder {
 public:
  PartialFolder(const std::filesystem::path& out, bool replace) : out_(out), partial_(partial_name(out)) {
    check_free(out_, replace);
    std::error_code error;
    if (replace) std::filesystem::remove_all(partial_, error);
    std::filesystem::create_directories(partial_, error);
    if (error) throw_error(ErrorKind::run, "{}: cannot create: {}", partial_.string(), error.message());
  }
  ~PartialFolder() {
    std::error_code ignored;
    if (!done_) std::filesystem::remove_all(partial_, ignored);
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const std::filesystem::path& path() const { return partial_; }
  void commit() {
    std::error_code error;
    std::filesystem::rename(partial_, out_, error);
    if (error)
      throw_error(ErrorKind::run, "{}: cannot rename to {}: {}", partial_.string(), out_.string(), error.message());
    done_ = true;
  }

 private:
  std::filesystem::path out_;
  std::filesystem::path partial_;
  bool done_ = false;
};

// What happens to every matrix of the source.
struct Plan {
  std::map<std::string, QuantizationScheme> modules;  // to quantize
  std::string untied;  // tensor that a head of its own is made from and that stays beside it; empty: none is
  std::vector<QuantizationGroup> groups;
  std::vector<std::string> ignore;
};

constexpr std::string_view kWeight = ".weight";

bool is_layer_projection(const Tensor& tensor, const std::string& prefix) {
  return tensor.shape.size() == 2 && tensor.name.starts_with(prefix + "layers.") &&
         tensor.name.ends_with("_proj.weight");
}

std::string module_name(const std::string& tensor) {
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : std::string();
}

// The module that is quantized as the output head; empty: none.
std::string head_module(const QuantizeJob& job, const Checkpoint& source, const std::string& prefix) {
  if (!job.head) return {};
  const bool has_head = source.find(std::string(kHeadModule) + ".weight") != nullptr;
  return has_head || job.own_head ? kHeadModule : prefix + "embed_tokens";
}

Plan make_plan(const QuantizeJob& job, const Checkpoint& source) {
  const std::string prefix = weight_prefix(source), table = prefix + "embed_tokens.weight";
  const std::string head = head_module(job, source, prefix);
  Plan plan;
  std::set<std::string> matched;
  const auto add = [&](const std::string& module, const QuantizationScheme& scheme) {
    bool excluded = false;
    for (const std::string& pattern : job.exclude) {
      if (!glob_match(pattern, module)) continue;
      matched.insert(pattern);
      excluded = true;
    }
    if (excluded) {
      plan.ignore.push_back(module);
    } else {
      plan.modules.emplace(module, scheme);
    }
  };
  for (const std::string& name : source.names()) {
    if (is_layer_projection(*source.find(name), prefix)) add(module_name(name), job.linear);
  }
  if (!head.empty()) add(head, *job.head);
  if (head == kHeadModule && plan.modules.count(head) != 0 &&
      source.find(std::string(kHeadModule) + ".weight") == nullptr)
    plan.untied = table;
  for (const std::string& pattern : job.exclude) {
    if (matched.count(pattern) == 0) {
      throw_error(ErrorKind::checkpoint, "{}: exclude pattern '{}' matches no module that would be quantized",
                  job.in.string(), pattern);
    }
  }
  if (plan.modules.empty()) {
    throw_error(ErrorKind::checkpoint, "{}: the exclude patterns leave no module to quantize; take one out",
                job.in.string());
  }
  plan.groups.push_back({"group_0", {"Linear"}, job.linear});
  const bool own_head = head == kHeadModule;
  if (plan.modules.count(head) != 0)
    plan.groups.push_back({"group_1", {own_head ? "re:.*lm_head" : "re:.*embed_tokens"}, *job.head});
  // The head shares the embedding's table; a reader that sees it as a linear layer of its own must not look for packed
  // weights.
  if (!own_head) plan.ignore.insert(plan.ignore.begin(), kHeadModule);
  if (skipped_modules(source, prefix).tensors > 0) {
    for (const char* pattern : {"re:.*vision.*", "re:.*audio.*", "re:.*multi_modal.*"})
      plan.ignore.emplace_back(pattern);
  }
  return plan;
}

void copy_side_files(const Checkpoint& source, const std::filesystem::path& to) {
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "special_tokens_map.json", "tokenizer.model", "chat_template.jinja", "chat_template.json",
                           "processor_config.json", "preprocessor_config.json", "LICENSE"}) {
    if (const std::optional<std::string> text = source.file_text(name)) write_text_atomically(to / name, *text);
  }
}

void require_dense(const Checkpoint& source) {
  const std::string file = (source.directory() / "config.json").string();
  if (parse_quantization_config(source.config_json(), file).quantized()) {
    throw_error(ErrorKind::checkpoint, "{}: is quantized already; start from the bf16 checkpoint",
                source.directory().string());
  }
}

}  // namespace

std::filesystem::path output_name(const std::filesystem::path& out) {
  const std::filesystem::path path = out.lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

std::filesystem::path require_free_output(const std::filesystem::path& out, bool replace_partial) {
  std::filesystem::path name = output_name(out);
  check_free(name, replace_partial);
  return name;
}

std::map<std::string, QuantizationScheme> modules_to_quantize(const QuantizeJob& job, const Checkpoint& source) {
  require_dense(source);
  return make_plan(job, source).modules;
}

DenseMatrix dense_matrix(const Tensor& tensor, std::vector<float>& storage) {
  if (tensor.type != TensorType::bf16 && tensor.type != TensorType::f32) {
    throw_error(ErrorKind::checkpoint, "{}: only BF16 and F32 can be quantized", describe(tensor));
  }
  const auto width = static_cast<std::size_t>(element_bytes(tensor.type));
  const void* values = tensor.data;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % width != 0) {
    storage.resize(tensor.bytes / sizeof(float) + 1);
    std::memcpy(storage.data(), tensor.data, tensor.bytes);
    values = storage.data();
  }
  return {tensor.name, tensor.type, values, tensor.shape[0], tensor.shape[1]};
}

QuantizeReport quantize_checkpoint(const QuantizeJob& job,
                                   const std::function<void(const QuantizeProgress&)>& progress) {
  const std::filesystem::path out = require_free_output(job.out, job.replace_partial);
  const Checkpoint source = Checkpoint::open(job.in);
  require_dense(source);
  const Plan plan = make_plan(job, source);
  const bool gptq = job.format == CheckpointFormat::gptq;
  const GptqZeros zeros = gptq_zeros(plan.groups);
  const std::string untied = plan.untied.empty() ? source.config_json() : with_own_head(source.config_json());
  const std::string config = gptq ? with_gptq_config(untied, plan.groups, plan.ignore)
                                  : with_quantization_config(untied, plan.groups, plan.ignore);
  PartialFolder folder(out, job.replace_partial);
  QuantizeReport report;
  report.bytes_in = source.tensor_bytes();
  const auto total = static_cast<std::int64_t>(plan.modules.size());
  std::int64_t done = 0;

  std::map<std::string, std::string> metadata = job.metadata;
  metadata.emplace("format", "pt");  // some readers insist on it
  SafetensorsWriter writer(folder.path() / "model.safetensors", std::move(metadata));
  const auto add_module = [&](const std::string& module, const Tensor& tensor) {
    if (tensor.type != TensorType::bf16 && tensor.type != TensorType::f32) {
      throw_error(ErrorKind::checkpoint, "{}: only BF16 and F32 can be quantized", describe(tensor));
    }
    const QuantizationScheme scheme = plan.modules.at(module);
    const auto produce = [&, module, scheme] {
      if (progress) progress({module, done, total});
      std::vector<float> storage;
      DenseMatrix dense = dense_matrix(tensor, storage);
      dense.name = module + std::string(kWeight);
      QuantizedMatrix matrix = job.quantize(dense, scheme);
      report.quantized.push_back(module);
      ++done;
      source.release_pages();
      return matrix;
    };
    if (gptq) {
      add_gptq_module(writer, module, scheme, zeros, tensor.shape[0], tensor.shape[1], produce);
    } else {
      add_quantized_module(writer, module, scheme, tensor.shape[0], tensor.shape[1], produce);
    }
  };
  for (const std::string& name : source.names()) {
    const Tensor& tensor = *source.find(name);
    if (plan.modules.count(module_name(name)) != 0) {
      add_module(module_name(name), tensor);
      continue;
    }
    ++report.copied;
    writer.add(name, tensor.type, tensor.shape, tensor.data);
    if (name == plan.untied) add_module(kHeadModule, tensor);
  }
  report.bytes_out = writer.write();
  write_text_atomically(folder.path() / "config.json", config);
  copy_side_files(source, folder.path());
  if (job.side_files) {
    for (const auto& [name, text] : job.side_files()) write_text_atomically(folder.path() / name, text);
  }
  folder.commit();
  if (progress) progress({"", done, total});
  return report;
}

}  // namespace facet
