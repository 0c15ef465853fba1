#include "facet/checkpoint/mapping_fault.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>

namespace facet {
namespace {

// What a handler may look at: lock-free atomics, and texts that were made before.
struct Mapping {
  std::atomic<bool> taken{false};
  std::atomic<std::uintptr_t> begin{0};  // 0: not to be looked at
  std::atomic<std::size_t> size{0};
  std::atomic<char*> text{nullptr};
};
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<char*>::is_always_lock_free);

std::array<Mapping, 4096> mappings;

void handle(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    const std::uintptr_t begin = mapping.begin.load();
    if (info->si_code <= 0 || begin == 0 || address < begin || address - begin >= mapping.size.load()) continue;
    const char* text = mapping.text.load();
    constexpr int kRefused = 3;  // exit_code(ErrorKind::checkpoint)
    // Nobody may read it: that changes nothing.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
    ::_exit(kRefused);
  }
  // Not ours, or sent by somebody.
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

void report_mapping_faults() {
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

void note_mapping(const std::byte* begin, std::size_t size, const std::string& file) {
  const std::string line = fmt::format(
      "facet: checkpoint error: {}: cannot be read any more: it became shorter, or its disk failed, while it was in "
      "use; leave a checkpoint alone while a program runs on it, copy it again and start anew\n",
      file);
  for (Mapping& mapping : mappings) {
    if (mapping.taken.exchange(true)) continue;
    auto text = std::make_unique<char[]>(line.size() + 1);
    std::memcpy(text.get(), line.c_str(), line.size() + 1);
    mapping.text.store(text.release());
    mapping.size.store(size);
    mapping.begin.store(reinterpret_cast<std::uintptr_t>(begin));
    return;
  }
}

void forget_mapping(const std::byte* begin) noexcept {
  for (Mapping& mapping : mappings) {
    if (mapping.begin.load() != reinterpret_cast<std::uintptr_t>(begin)) continue;
    mapping.begin.store(0);
    delete[] mapping.text.exchange(nullptr);
    mapping.taken.store(false);
    return;
  }
}

}  // namespace facet
