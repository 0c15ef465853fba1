#include "atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "facet/base/error.h"

namespace facet::checkpoint_detail {

AtomicFile::AtomicFile(std::filesystem::path file) : file_(std::move(file)) {
  partial_ = file_;
  partial_ += fmt::format(".{}.partial", ::getpid());
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_error(ErrorKind::run, "{}: cannot create: {}", partial_.string(), std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(partial_.c_str());
  }
}

void AtomicFile::fail(const char* what, int error) const {
  throw_error(ErrorKind::run, "{}: {} after {} bytes: {}; nothing was kept", file_.string(), what, written_,
              std::strerror(error));
}

void AtomicFile::append(const void* bytes, std::uint64_t count) {
  // Linux writes at most 2 GiB at once; smaller pieces keep the error's position close.
  constexpr std::uint64_t kPiece = 64u << 20;
  const auto* at = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t done = ::write(fd_, at, std::min(count, kPiece));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail("cannot write", done < 0 ? errno : ENOSPC);
    at += done;
    count -= static_cast<std::uint64_t>(done);
    written_ += static_cast<std::uint64_t>(done);
  }
}

void AtomicFile::commit() {
  // Without the sync a crash after the rename could leave a whole name on half a file.
  if (::fsync(fd_) != 0) fail("cannot sync", errno);
  if (::rename(partial_.c_str(), file_.c_str()) != 0) fail("cannot rename", errno);
  ::close(fd_);
  fd_ = -1;
  const std::filesystem::path parent = file_.has_parent_path() ? file_.parent_path() : std::filesystem::path(".");
  const int folder = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);  // best effort: some file systems refuse it, and the file itself is safe
    ::close(folder);
  }
}

}  // namespace facet::checkpoint_detail
