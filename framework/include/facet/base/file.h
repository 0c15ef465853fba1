// Reading files that others made. Only regular ones: a pipe may never answer, and a folder opens but has no content.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "facet/base/error.h"

namespace facet {

// An open regular file; closes its descriptor.
class RegularFile {
 public:
  // Throws Error(kind) naming the file and the system's reason, and for what is no regular file. Never waits.
  RegularFile(const std::filesystem::path& file, ErrorKind kind);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  int descriptor() const noexcept { return descriptor_; }
  std::uint64_t size() const noexcept { return size_; }  // when it was opened

 private:
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// All of a regular file. Throws as RegularFile does, and when reading fails.
std::string read_file(const std::filesystem::path& file, ErrorKind kind);
// Nothing when no such file is there.
std::optional<std::string> read_file_if_there(const std::filesystem::path& file, ErrorKind kind);

}  // namespace facet
