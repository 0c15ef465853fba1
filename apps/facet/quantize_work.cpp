#include "quantize_work.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>

#include "facet/base/file.h"
#include "facet/base/text.h"
#include "facet/checkpoint/safetensors.h"

namespace facet::cli {
namespace {

constexpr const char *kReport = "report", *kSum = ".sum";  // keys, and the end of keys, in the metadata of a part

template <typename T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const Tensor* tensor = file.find(name);
  if (tensor == nullptr) {
    throw_error(ErrorKind::checkpoint, "it holds no tensor '{}'", name);
  }
  std::vector<T> copy(tensor->bytes / sizeof(T));
  std::memcpy(copy.data(), tensor->data, copy.size() * sizeof(T));
  return copy;
}

// Of four streams of words, so that no multiplication waits for the one before.
std::uint64_t sum_of(const void* data, std::size_t bytes, std::uint64_t seed) {
  constexpr std::size_t kLanes = 4, kBlock = kLanes * sizeof(std::uint64_t);
  const auto* from = static_cast<const unsigned char*>(data);
  std::uint64_t lanes[kLanes] = {seed, seed + 1, seed + 2, seed + 3};
  for (; bytes >= kBlock; from += kBlock, bytes -= kBlock) {
    std::uint64_t words[kLanes];
    std::memcpy(words, from, kBlock);
    for (std::size_t i = 0; i < kLanes; ++i) {
      lanes[i] = (lanes[i] ^ words[i]) * 0x9e3779b97f4a7c15ull;
      lanes[i] ^= lanes[i] >> 29;
    }
  }
  return fnv1a(from, bytes, fnv1a(lanes, sizeof lanes, seed));
}

std::string sum_of(const QuantizedMatrix& matrix) {
  std::uint64_t sum = sum_of(matrix.words.data(), matrix.words.size() * sizeof(std::uint32_t), 0);
  sum = sum_of(matrix.scales.data(), matrix.scales.size() * sizeof(float), sum);
  return fmt::format("{:016x}", sum_of(matrix.zeros.data(), matrix.zeros.size(), sum));
}

std::string sum_of(const std::string& text) {
  return fmt::format("{:016x}", sum_of(text.data(), text.size(), 0));
}

const std::string& entry_of(const std::map<std::string, std::string>& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end())
    throw_error(ErrorKind::checkpoint, "it holds no '{}', as of another version of facet", key);
  return found->second;
}

Json report_of(const std::map<std::string, std::string>& metadata) {
  const std::string& text = entry_of(metadata, kReport);
  Json report = Json::parse(text, nullptr, false);
  if (entry_of(metadata, std::string(kReport) + kSum) != sum_of(text) || !report.is_structured())
    throw_error(ErrorKind::checkpoint, "the text of its report is not that which was written");
  return report;
}

// What a run leaves that was stopped before it wrote job.json.
void require_own(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder))
    throw_error(ErrorKind::run, "{}: is no folder; choose another --out or move it", folder.string());
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == "lock" || name.starts_with("job.json")) continue;
    throw_error(ErrorKind::run,
                "{}: holds '{}' and is no work folder of facet quantize, which would delete it; choose "
                "another --out or move it",
                folder.string(), name);
  }
}

std::string show(const Json& json, const std::string& key) {
  return json.contains(key) ? json[key].dump() : "nothing";
}

}  // namespace

WorkFolder::WorkFolder(const std::filesystem::path& out, const Json& job, bool resume) : path_(path_of(out)) {
  std::error_code error;
  const bool exists = std::filesystem::exists(path_, error);
  const std::optional<Json> before = interrupted(out);
  if (exists && !before) require_own(path_);
  std::filesystem::create_directories(path_, error);
  if (error) throw_error(ErrorKind::run, "{}: cannot create: {}", path_.string(), error.message());
  lock_.take(path_);
  if (before && !resume) {
    throw_error(ErrorKind::run, "{}: an interrupted run left it; go on with --resume, or delete it to start again",
                path_.string());
  }
  if (before) require_same(out, *before, job);
  // A run that was stopped before it wrote job.json has saved nothing.
  if (!before) write_text_atomically(path_ / "job.json", json_text(job) + "\n");
  for (const auto& entry : std::filesystem::directory_iterator(path_))
    holds_parts_ = holds_parts_ || entry.path().extension() == ".safetensors";
}

WorkFolder::~WorkFolder() {
  if (!holds_parts_) remove();
}

WorkFolder::Lock::~Lock() {
  if (descriptor_ >= 0) close(descriptor_);
}

void WorkFolder::Lock::take(const std::filesystem::path& folder) {
  const std::filesystem::path name = folder / "lock";
  descriptor_ = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw_error(ErrorKind::run, "{}: cannot create: {}", name.string(), std::strerror(errno));
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0)
    throw_error(ErrorKind::run, "{}: another run is working in it", folder.string());
}

std::optional<Json> WorkFolder::interrupted(const std::filesystem::path& out) {
  const std::filesystem::path file = path_of(out) / "job.json";
  const std::optional<std::string> text = read_file_if_there(file, ErrorKind::checkpoint);
  if (!text) return std::nullopt;
  Json before = Json::parse(*text, nullptr, false);
  if (!before.is_object())
    throw_error(ErrorKind::checkpoint, "{}: not a JSON object; delete the folder and start again", file.string());
  return before;
}

std::optional<std::string> WorkFolder::first_difference(const Json& before, const Json& job) {
  for (const Json& side : {before, job}) {
    for (const auto& [key, value] : side.items()) {
      if (show(before, key) != show(job, key)) return key;
    }
  }
  return std::nullopt;
}

void WorkFolder::require_same(const std::filesystem::path& out, const Json& before, const Json& job) {
  const std::optional<std::string> key = first_difference(before, job);
  if (!key) return;
  throw_error(
      ErrorKind::usage,
      "--resume: the interrupted run in {} had {} = {}, this one has {}; give the same, or delete the folder to "
      "start again",
      path_of(out).string(), *key, show(before, *key), show(job, *key));
}

bool WorkFolder::has(const std::string& part) const {
  return std::filesystem::exists(file(part));
}

template <typename Read>
auto WorkFolder::read(const std::string& part, Read&& what) const {
  try {
    const SafetensorsFile source = SafetensorsFile::open(file(part));
    if (source.layout().trailing_bytes > 0 || source.layout().hole_bytes > 0)
      throw_error(ErrorKind::checkpoint, "bytes follow a tensor that nobody wrote");
    // With every read, so that a resumed run notices before hours of work and not with its report.
    Json report = report_of(source.layout().metadata);
    return what(source, std::move(report));
  } catch (const Error& error) {
    throw_error(ErrorKind::checkpoint,
                "{}: damaged ({}); delete this file and go on with --resume, which makes it anew", file(part).string(),
                error.what());
  }
}

QuantizedMatrix WorkFolder::load(const std::string& part, const std::string& module) const {
  return read(part, [&](const SafetensorsFile& source, const Json&) {
    QuantizedMatrix matrix{values<std::uint32_t>(source, module + ".words"), values<float>(source, module + ".scales"),
                           values<std::uint8_t>(source, module + ".zeros")};
    if (entry_of(source.layout().metadata, module + kSum) != sum_of(matrix))
      throw_error(ErrorKind::checkpoint, "the bytes of {} are not those that were written", module);
    return matrix;
  });
}

Json WorkFolder::report(const std::string& part) const {
  return read(part, [](const SafetensorsFile&, Json report) { return report; });
}

void WorkFolder::save(const std::string& part, const FinishedPart& finished) {
  const std::string report = finished.report.dump();
  std::map<std::string, std::string> metadata = {{kReport, report}, {std::string(kReport) + kSum, sum_of(report)}};
  for (const auto& [module, matrix] : finished.modules) metadata[module + kSum] = sum_of(matrix);
  SafetensorsWriter writer(file(part), metadata);
  for (const auto& entry : finished.modules) {
    // Names of their own: clang 14 captures no structured bindings.
    const std::string& module = entry.first;
    const auto& matrix = entry.second;
    const auto add = [&](const char* suffix, TensorType type, std::size_t count, const void* data) {
      writer.add(module + suffix, type, {static_cast<std::int64_t>(count)}, data);
    };
    add(".words", TensorType::u32, matrix.words.size(), matrix.words.data());
    add(".scales", TensorType::f32, matrix.scales.size(), matrix.scales.data());
    add(".zeros", TensorType::u8, matrix.zeros.size(), matrix.zeros.data());
  }
  writer.write();
  holds_parts_ = true;
}

void WorkFolder::remove() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace facet::cli
