#include "facet/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace facet {

RegularFile::RegularFile(const std::filesystem::path& file, ErrorKind kind) {
  const auto fail = [&](const std::string& reason) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw_error(kind, "{}: cannot be read: {}", file.string(), reason);
  };
  // Without O_NONBLOCK opening a pipe waits for somebody who writes.
  descriptor_ = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail(std::strerror(errno));
  struct stat facts {};
  if (::fstat(descriptor_, &facts) != 0) fail(std::strerror(errno));
  if (S_ISDIR(facts.st_mode)) fail("it is a folder, not a regular file");
  if (!S_ISREG(facts.st_mode)) fail("it is a pipe or a device, not a regular file");
  size_ = static_cast<std::uint64_t>(facts.st_size);
}

RegularFile::~RegularFile() {
  ::close(descriptor_);
}

std::string read_file(const std::filesystem::path& file, ErrorKind kind) {
  const RegularFile source(file, kind);
  // One byte more than it had, so that a file that grew is read to its end too.
  std::string text(source.size() + 1, '\0');
  std::size_t got = 0;
  while (true) {
    const ssize_t count = ::read(source.descriptor(), text.data() + got, text.size() - got);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_error(kind, "{}: cannot be read: {}", file.string(), std::strerror(errno));
    if (count == 0) break;
    got += static_cast<std::size_t>(count);
    if (got == text.size()) text.resize(2 * got);
  }
  text.resize(got);
  return text;
}

std::optional<std::string> read_file_if_there(const std::filesystem::path& file, ErrorKind kind) {
  std::error_code error;
  if (std::filesystem::symlink_status(file, error).type() == std::filesystem::file_type::not_found) return std::nullopt;
  return read_file(file, kind);
}

}  // namespace facet
