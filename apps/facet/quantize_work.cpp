#include "quantize_work.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "facet/checkpoint/safetensors.h"

namespace facet::cli {
namespace {

template <typename T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const Tensor* tensor = file.find(name);
  if (tensor == nullptr) {
    throw_error(ErrorKind::checkpoint, "{}: holds no tensor '{}'; delete the folder and start again",
                file.path().string(), name);
  }
  std::vector<T> copy(tensor->bytes / sizeof(T));
  std::memcpy(copy.data(), tensor->data, copy.size() * sizeof(T));
  return copy;
}

std::string show(const Json& json, const std::string& key) {
  return json.contains(key) ? json[key].dump() : "nothing";
}

}  // namespace

WorkFolder::WorkFolder(const std::filesystem::path& out, const Json& job, bool resume) : path_(out.string() + ".work") {
  std::error_code error;
  const bool exists = std::filesystem::exists(path_, error);
  std::filesystem::create_directories(path_, error);
  if (error) throw_error(ErrorKind::run, "{}: cannot create: {}", path_.string(), error.message());
  lock_.take(path_);
  const bool begun = std::filesystem::exists(path_ / "job.json");
  if (exists && begun && !resume) {
    holds_parts_ = true;  // not this run's to delete
    throw_error(ErrorKind::run, "{}: an interrupted run left it; go on with --resume, or delete it to start again",
                path_.string());
  }
  if (begun) compare(job);
  // A run that was stopped before it wrote job.json has saved nothing.
  if (!begun) write_text_atomically(path_ / "job.json", json_text(job) + "\n");
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

void WorkFolder::compare(const Json& job) const {
  std::ifstream in(path_ / "job.json");
  const Json before = Json::parse(in, nullptr, false);
  if (!before.is_object()) {
    throw_error(ErrorKind::checkpoint, "{}: not a JSON object; delete the folder and start again",
                (path_ / "job.json").string());
  }
  for (const Json& side : {before, job}) {
    for (const auto& [key, value] : side.items()) {
      if (show(before, key) == show(job, key)) continue;
      throw_error(ErrorKind::usage,
                  "--resume: the interrupted run in {} had {} = {}, this one has {}; give the same, or delete the "
                  "folder to start again",
                  path_.string(), key, show(before, key), show(job, key));
    }
  }
}

bool WorkFolder::has(const std::string& part) const {
  return std::filesystem::exists(file(part));
}

QuantizedMatrix WorkFolder::load(const std::string& part, const std::string& module) const {
  const SafetensorsFile source = SafetensorsFile::open(file(part));
  return {values<std::uint32_t>(source, module + ".words"), values<float>(source, module + ".scales"),
          values<std::uint8_t>(source, module + ".zeros")};
}

Json WorkFolder::report(const std::string& part) const {
  const SafetensorsFile source = SafetensorsFile::open(file(part));
  const auto report = source.layout().metadata.find("report");
  return report == source.layout().metadata.end() ? Json() : Json::parse(report->second, nullptr, false);
}

void WorkFolder::save(const std::string& part, const FinishedPart& finished) {
  SafetensorsWriter writer(file(part), {{"report", finished.report.dump()}});
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
