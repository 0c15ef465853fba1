// The work folder of a calibrated quantization: what is finished, so that an interrupted run can go on.
#pragma once

#include <map>
#include <optional>

#include "common.h"
#include "facet/checkpoint/quantized_writer.h"

namespace facet::cli {

// Modules that were finished together, and what the report says of them.
// The check takes an assertion inside Json's destructor for an exception.
struct FinishedPart {  // NOLINT(bugprone-exception-escape)
  std::map<std::string, QuantizedMatrix> modules;
  Json report;
};

// "<out>.work": one file for each finished layer, written whole or not at all, and job.json, which says whose they are.
class WorkFolder {
 public:
  // `job` identifies input and settings. Throws Error(run) when another process works in the folder; when it exists and
  // `resume` is false; when it holds something else; Error(usage) naming the first key whose value differs from the
  // interrupted run's.
  WorkFolder(const std::filesystem::path& out, const Json& job, bool resume);
  // Deletes the folder unless a part was saved or found in it.
  ~WorkFolder();
  static std::filesystem::path path_of(const std::filesystem::path& out) { return out.string() + ".work"; }
  // What an interrupted run for `out` was about; nothing when there was none. Error(checkpoint) when it is damaged.
  static std::optional<Json> interrupted(const std::filesystem::path& out);
  // A key whose values differ, or that one of the two lacks.
  static std::optional<std::string> first_difference(const Json& before, const Json& job);
  // Error(usage) naming it.
  static void require_same(const std::filesystem::path& out, const Json& before, const Json& job);
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  bool holds_parts() const { return holds_parts_; }
  bool has(const std::string& part) const;
  // Error(checkpoint) when the file is damaged, by its sums too, its report with it, or holds no such module.
  QuantizedMatrix load(const std::string& part, const std::string& module) const;
  Json report(const std::string& part) const;
  void save(const std::string& part, const FinishedPart& finished);
  // Deletes everything, at the end.
  void remove();

 private:
  // what(file, its report); every Error becomes one that names the file and the cure.
  template <typename Read>
  auto read(const std::string& part, Read&& what) const;
  std::filesystem::path file(const std::string& part) const { return path_ / (part + ".safetensors"); }

  // Held by one process; released by the system, too, when the process dies.
  class Lock {
   public:
    ~Lock();
    void take(const std::filesystem::path& folder);

   private:
    int descriptor_ = -1;
  };

  std::filesystem::path path_;
  Lock lock_;
  bool holds_parts_ = false;
};

}  // namespace facet::cli
