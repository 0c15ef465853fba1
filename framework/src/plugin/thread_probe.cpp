#include "plugin/thread_probe.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <system_error>
#include <thread>
#include <vector>

#include "facet/base/error.h"

namespace facet {

namespace {

// Threads that wait for each other's existence.
class Probes {
 public:
  explicit Probes(std::uint32_t most) : ids_(most) { threads_.reserve(most); }
  Probes(const Probes&) = delete;
  Probes& operator=(const Probes&) = delete;
  ~Probes() {
    go_.store(true);
    go_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    // A joined thread counts against the limits until the system has forgotten its number.
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      while (::syscall(SYS_tgkill, ::getpid(), ids_[i], 0) == 0) std::this_thread::yield();
    }
  }

  // Throws std::system_error.
  void add() {
    pid_t& id = ids_[threads_.size()];
    threads_.emplace_back([this, &id] {
      id = static_cast<pid_t>(::syscall(SYS_gettid));
      go_.wait(false);
    });
  }
  std::size_t count() const { return threads_.size(); }

 private:
  std::vector<pid_t> ids_;
  std::vector<std::thread> threads_;
  std::atomic<bool> go_{false};
};

}  // namespace

void require_threads(std::uint32_t count) {
  Probes probes(count);
  try {
    while (probes.count() < count) probes.add();
  } catch (const std::system_error& error) {
    throw_error(
        ErrorKind::run,
        "threads: {} are needed besides those of this process, the system gives {} ({}); set engine.threads of "
        "the configuration (quantize: --threads) to at most {}, or raise what limits them: `ulimit -u`, `ulimit "
        "-v` or the container's number of processes",
        count, probes.count(), error.code().message(), probes.count() + 1);
  }
}

}  // namespace facet
