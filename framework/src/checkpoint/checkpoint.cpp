#include "facet/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "facet/base/error.h"
#include "facet/base/file.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "facet/checkpoint/float_bits.h"
#include "shard_index.h"

namespace facet {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

std::optional<std::string> read_text(const std::filesystem::path& file) {
  std::optional<std::string> text = read_file_if_there(file, ErrorKind::checkpoint);
  if (text && json_depth(*text) > kMaxJsonDepth) {
    throw_error(ErrorKind::checkpoint, "{}: is nested {} deep; at most {} is read", file.string(), json_depth(*text),
                kMaxJsonDepth);
  }
  return text;
}

// Names of all safetensors files of a folder, sorted.
std::set<std::string> weight_files(const std::filesystem::path& directory) {
  std::set<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".safetensors") files.insert(entry.path().filename().string());
  }
  if (error) throw_error(ErrorKind::checkpoint, "{}: cannot list the folder: {}", directory.string(), error.message());
  return files;
}

std::uint64_t hash_sample(const Tensor& tensor, std::uint64_t seed) {
  constexpr std::uint64_t kSample = 64;
  const std::uint64_t length = std::min(tensor.bytes, kSample);
  for (const std::uint64_t position : {std::uint64_t{0}, (tensor.bytes - length) / 2, tensor.bytes - length}) {
    seed = fnv1a(tensor.data + position, length, seed);
  }
  return seed;
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::exists(directory, error)) {
    throw_error(ErrorKind::checkpoint, "{}: no such checkpoint folder", directory.string());
  }
  if (!std::filesystem::is_directory(directory, error)) {
    throw_error(ErrorKind::checkpoint,
                "{}: a checkpoint is a folder with config.json and safetensors files, this is a file",
                directory.string());
  }
  Checkpoint result;
  result.directory_ = directory;
  result.files_ = std::make_shared<std::vector<SafetensorsFile>>();
  result.config_ = read_text(directory / "config.json");
  const std::optional<std::string> index = read_text(directory / kIndexName);
  if (index) {
    result.open_sharded(*index);
  } else {
    result.open_single();
  }
  for (const SafetensorsFile& file : *result.files_) {
    for (const Tensor& tensor : file.tensors()) result.tensors_[tensor.name] = &tensor;
  }
  return result;
}

void Checkpoint::open_single() {
  std::set<std::string> files = weight_files(directory_);
  const bool single = files.erase(kSingleName) > 0;
  const bool shards =
      std::any_of(files.begin(), files.end(), [](const std::string& name) { return glob_match("model-*-of-*", name); });
  if (shards) {
    throw_error(ErrorKind::checkpoint,
                "{}: {} is missing although the folder holds shards ({}); copy the index beside them",
                directory_.string(), kIndexName, fmt::join(files, ", "));
  }
  if (!single) {
    throw_error(ErrorKind::checkpoint, "{}: holds neither {} nor {}{}", directory_.string(), kSingleName, kIndexName,
                files.empty() ? std::string() : fmt::format("; found {}", fmt::join(files, ", ")));
  }
  if (!files.empty()) {
    log(LogLevel::warn, "{}: {} safetensors files beside {} are ignored: {}", directory_.string(), files.size(),
        kSingleName, fmt::join(files, ", "));
  }
  files_->push_back(SafetensorsFile::open(directory_ / kSingleName));
}

void Checkpoint::open_sharded(const std::string& index_text) {
  const std::filesystem::path index_path = directory_ / kIndexName;
  const auto weight_map = checkpoint_detail::parse_shard_index(index_text, index_path.string());
  std::set<std::string> present = weight_files(directory_);
  std::set<std::string> named;
  for (const auto& [tensor, file] : weight_map) named.insert(file);

  Problems problems;
  for (const std::string& name : named) {
    if (present.erase(name) == 0) {
      const auto count =
          std::count_if(weight_map.begin(), weight_map.end(), [&](const auto& row) { return row.second == name; });
      const auto first =
          std::find_if(weight_map.begin(), weight_map.end(), [&](const auto& row) { return row.second == name; });
      problems.add("shard '{}' is missing; the index puts {} tensors there, '{}' among them", name, count,
                   first->first);
      continue;
    }
    files_->push_back(SafetensorsFile::open(directory_ / name));
  }
  checkpoint_detail::compare_with_index(weight_map, *files_, problems);
  if (!problems.empty() && !present.empty())
    problems.add("files that the index does not name: {}", fmt::join(present, ", "));
  problems.throw_if_any(ErrorKind::checkpoint, fmt::format("{}: index and shards disagree", index_path.string()));
  if (!present.empty()) {
    log(LogLevel::warn, "{}: {} safetensors files that the index does not name are ignored: {}", index_path.string(),
        present.size(), fmt::join(present, ", "));
  }
}

const Tensor* Checkpoint::find(std::string_view name) const noexcept {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

const Tensor& Checkpoint::require(std::string_view name, const std::vector<std::int64_t>& shape,
                                  std::initializer_list<TensorType> allowed) const {
  const Tensor* tensor = find(name);
  if (tensor == nullptr) {
    const std::string near = nearest_name(name, names());
    throw_error(ErrorKind::checkpoint, "{}: tensor '{}' (shape {}) is missing{}", directory_.string(), name,
                shape_text(shape),
                near.empty() ? std::string() : fmt::format("; the nearest name there is '{}'", near));
  }
  if (std::find(allowed.begin(), allowed.end(), tensor->type) == allowed.end()) {
    std::vector<std::string> wanted;
    for (const TensorType type : allowed) wanted.emplace_back(to_string(type));
    throw_error(ErrorKind::checkpoint, "{}: type {} where {} is needed", describe(*tensor), to_string(tensor->type),
                fmt::join(wanted, " or "));
  }
  if (tensor->shape != shape) {
    throw_error(ErrorKind::checkpoint, "{}: shape {} where config.json needs {}", describe(*tensor),
                shape_text(tensor->shape), shape_text(shape));
  }
  return *tensor;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

std::uint64_t Checkpoint::tensor_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += tensor->bytes;
  return bytes;
}

const std::string& Checkpoint::config_json() const {
  if (!config_) throw_error(ErrorKind::checkpoint, "{}: config.json is missing", directory_.string());
  return *config_;
}

std::optional<std::string> Checkpoint::file_text(std::string_view name) const {
  return read_text(directory_ / name);
}

std::uint64_t Checkpoint::content_hash() const {
  std::uint64_t hash = fnv1a(nullptr, 0);
  if (config_) hash = fnv1a(config_->data(), config_->size(), hash);
  for (const SafetensorsFile& file : *files_) {
    const std::string name = file.path().filename().string();
    const std::uint64_t size = file.file_bytes();
    hash = fnv1a(name.data(), name.size(), hash);
    hash = fnv1a(&size, sizeof size, hash);
    hash = fnv1a(file.image(), file.layout().data_start, hash);
    for (const Tensor& tensor : file.tensors()) hash = hash_sample(tensor, hash);
  }
  return hash;
}

void Checkpoint::release_pages() const noexcept {
  for (const SafetensorsFile& file : *files_) file.release_pages();
}

std::vector<float> load_vector(const Checkpoint& checkpoint, std::string_view name, std::int64_t count) {
  const Tensor* scalar = checkpoint.find(name);
  const bool is_scalar = count == 1 && scalar != nullptr && scalar->shape.empty();
  const std::vector<std::int64_t> shape = is_scalar ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{count};
  const Tensor& tensor = checkpoint.require(name, shape, {TensorType::bf16, TensorType::f32, TensorType::f16});
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (tensor.type == TensorType::f32) {
      std::memcpy(&values[i], tensor.data + 4 * i, 4);
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, tensor.data + 2 * i, 2);
      values[i] = tensor.type == TensorType::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
    }
    if (!std::isfinite(values[i]))
      throw_error(ErrorKind::checkpoint, "{}: value {} is {}", describe(tensor), i, values[i]);
  }
  return values;
}

}  // namespace facet
