// Ctrl-C as a request to stop after the step, so that what is finished can be printed.
#pragma once

#include <atomic>

namespace facet::cli {

// While it lives, SIGINT and SIGTERM are noted; a second one of a kind ends the process at once. One at a time. A
// signal that is ignored stays so.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal that came, or 0.
  static const std::atomic<int>& received();
  // Flushes stdout and stderr, then ends the process by this signal, as the shell and make want to see it.
  [[noreturn]] static void die_of(int signal);
};

}  // namespace facet::cli
