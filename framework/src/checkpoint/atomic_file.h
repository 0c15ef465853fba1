// A file that appears under its name only when it is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace facet::checkpoint_detail {

class AtomicFile {
 public:
  // Creates "<name>.<pid>.partial" beside `file`. Throws Error(run).
  explicit AtomicFile(std::filesystem::path file);
  // Removes the temporary file unless commit() was reached.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Throws Error(run) naming the path and how many bytes were written.
  void append(const void* bytes, std::uint64_t count);
  std::uint64_t written() const noexcept { return written_; }
  // Syncs, renames to the final name, syncs the folder.
  void commit();

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  std::filesystem::path file_;
  std::filesystem::path partial_;
  int fd_ = -1;
  std::uint64_t written_ = 0;
};

}  // namespace facet::checkpoint_detail
