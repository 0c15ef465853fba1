#include "stop_signal.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace facet::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

std::atomic<int> last{0};  // a handler reaches nothing else
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  last.store(signal);
}

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction before {};
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
}

}  // namespace

StopSignal::StopSignal() {
  last.store(0);
  for (const int signal : kSignals) handle(signal, note, static_cast<int>(SA_RESETHAND | SA_RESTART));
}

StopSignal::~StopSignal() {
  for (const int signal : kSignals) handle(signal, SIG_DFL, 0);
}

const std::atomic<int>& StopSignal::received() {
  return last;
}

void StopSignal::die_of(int signal) {
  std::fflush(stdout);
  std::fflush(stderr);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
  std::abort();  // not reached: both signals end a process
}

}  // namespace facet::cli
