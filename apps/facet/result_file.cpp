#include "result_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "facet/base/error.h"
#include "facet/checkpoint/writer.h"

namespace facet::cli {
namespace {

namespace fs = std::filesystem;

// What a link leads to, there or not: the link itself must not be replaced.
fs::path followed(fs::path file) {
  constexpr int kMostLinks = 40;  // as the system follows
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(file, error)); ++i)
    file = file.parent_path() / fs::read_symlink(file, error);
  return file;
}

bool is_special(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  return fs::exists(status) && !fs::is_regular_file(status);
}

}  // namespace

void check_result_file(const char* option, const fs::path& file) {
  std::error_code error;
  const fs::path target = followed(file);
  const fs::path parent = target.has_parent_path() ? target.parent_path() : fs::path(".");
  if (!fs::is_directory(parent, error))
    throw_error(ErrorKind::usage, "{} {}: cannot be written: {} is no folder; create it first", option, file.string(),
                parent.string());
  if (fs::is_directory(target, error))
    throw_error(ErrorKind::usage, "{} {}: is a folder; name a file in it", option, file.string());
  if (fs::exists(target, error) && ::access(target.c_str(), W_OK) != 0)
    throw_error(ErrorKind::usage, "{} {}: cannot be written: {}", option, file.string(), std::strerror(errno));
  if (is_special(target)) return;  // opening a pipe would wait for its reader
  // The new file is made beside the old one.
  const fs::path beside = target.string() + fmt::format(".{}.check", ::getpid());
  const int descriptor = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0)
    throw_error(ErrorKind::usage, "{} {}: cannot be written: a file beside it, {}: {}", option, file.string(),
                beside.string(), std::strerror(errno));
  ::close(descriptor);
  ::unlink(beside.c_str());
}

void write_result_file(const char* option, const fs::path& file, const std::string& text) {
  const fs::path target = followed(file);
  if (!is_special(target)) {
    try {
      write_text_atomically(target, text);
    } catch (Error& error) {
      throw Error(error.kind(), fmt::format("{} {}: cannot be written: {}", option, file.string(), error.message()));
    }
    return;
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(target.c_str(), "w"), &std::fclose);
  if (!out || std::fwrite(text.data(), 1, text.size(), out.get()) != text.size() || std::fflush(out.get()) != 0)
    throw_error(ErrorKind::run, "{} {}: cannot be written: {}", option, file.string(), std::strerror(errno));
}

}  // namespace facet::cli
