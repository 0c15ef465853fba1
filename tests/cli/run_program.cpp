#include "run_program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

namespace facet::cli_test {
namespace {

struct Pipe {
  std::array<int, 2> ends{-1, -1};
  Pipe() {
    if (pipe(ends.data()) != 0) throw std::runtime_error("pipe failed");
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(std::size_t end) {
    if (ends[end] >= 0) close(ends[end]);
    ends[end] = -1;
  }
};

// Reads both pipes at once, since a full one would stop the child.
void drain(Pipe& out, Pipe& err, ProgramResult& result) {
  std::array<char, 65536> piece;
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    std::array<pollfd, 2> waits{pollfd{out.ends[0], POLLIN, 0}, pollfd{err.ends[0], POLLIN, 0}};
    if (poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) return;
    for (Pipe* pipe : {&out, &err}) {
      const pollfd& wait = waits[pipe == &out ? 0 : 1];
      if (wait.fd < 0 || wait.revents == 0) continue;
      const ssize_t count = read(wait.fd, piece.data(), piece.size());
      if (count > 0) {
        (pipe == &out ? result.out : result.err).append(piece.data(), static_cast<std::size_t>(count));
      } else if (count == 0 || errno != EINTR) {
        pipe->close_end(0);
      }
    }
  }
}

[[noreturn]] void become(const std::vector<std::string>& words, const fs::path& folder,
                         const std::vector<std::pair<std::string, std::string>>& environment, int out, int err) {
  constexpr int kCannotStart = 127;
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (!folder.empty() && chdir(folder.c_str()) != 0) _exit(kCannotStart);
  unsetenv("FACET_PLUGIN_PATH");
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(kCannotStart);
}

}  // namespace

std::string ProgramResult::text() const {
  return fmt::format("exit {} signal {}\nstdout:\n{}\nstderr:\n{}", exit_code, signal, out, err);
}

Json ProgramResult::json() const {
  try {
    return Json::parse(out);
  } catch (const Json::exception& error) {
    ADD_FAILURE() << "stdout is not one JSON document: " << error.what() << "\n" << text();
    return nullptr;
  }
}

fs::path facet_program() {
  return fs::path(FACET_BINARY_DIR) / "bin" / "facet";
}

ProgramResult run_facet(const std::vector<std::string>& arguments, const fs::path& folder,
                        const std::vector<std::pair<std::string, std::string>>& environment) {
  std::vector<std::string> words = {facet_program().string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  ProgramResult result;
  Pipe out, err;
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) become(words, folder, environment, out.ends[1], err.ends[1]);
  out.close_end(1);
  err.close_end(1);
  drain(out, err, result);
  int status = 0;
  rusage usage{};
  while (wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.peak_rss_bytes = static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
  return result;
}

}  // namespace facet::cli_test
