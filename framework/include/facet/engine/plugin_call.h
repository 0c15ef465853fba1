// Calls into plugins: the text a plugin writes, its status made an Error, and the count that proves it was called.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "facet/base/error.h"
#include "facet/plugin/registry.h"
#include "facet/plugin/sink_text.h"

namespace facet {

// "attention plugin 'flash' 0.1.0 (attention_flash.so)"
std::string describe(const LoadedPlugin& plugin);

// Throws Error(kind) "<plugin> failed while <operation>: <status>: <text>" unless status is ok.
void check_call(abi::Status status, const LoadedPlugin& plugin, const char* operation, const SinkText& text,
                ErrorKind kind = ErrorKind::run);

// Calls of run() and the time spent in them, for one plugin instance.
struct CallCounter {
  std::int64_t calls = 0;
  std::int64_t nanoseconds = 0;
};

// Adds one call and its duration on destruction.
class CountedCall {
 public:
  explicit CountedCall(CallCounter& counter) : counter_(counter), begin_(std::chrono::steady_clock::now()) {}
  CountedCall(const CountedCall&) = delete;
  CountedCall& operator=(const CountedCall&) = delete;
  ~CountedCall() {
    ++counter_.calls;
    counter_.nanoseconds +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  CallCounter& counter_;
  std::chrono::steady_clock::time_point begin_;
};

// One plugin asked, and what it said.
struct Refusal {
  std::string plugin;
  std::string reasons;
};

}  // namespace facet
